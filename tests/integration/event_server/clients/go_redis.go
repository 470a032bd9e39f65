// What go-redis does with an okq server. Arguments: port, password.
package main

import (
	"fmt"
	"os"
	"reflect"
	"time"

	"gopkg.in/redis.v5"
)

const contents = "\x00\xff\r\nx"

func open() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:" + os.Args[1], Password: os.Args[2], ReadTimeout: 90 * time.Second, PoolSize: 4,
	})
}

func do(client *redis.Client, arguments ...interface{}) interface{} {
	command := redis.NewCmd(arguments...)
	_ = client.Process(command)
	reply, err := command.Result()
	if err == redis.Nil {
		return nil
	}
	if err != nil {
		return err.Error()
	}
	return reply
}

func expect(found interface{}, wanted interface{}) {
	if !reflect.DeepEqual(found, wanted) {
		panic(fmt.Sprintf("found %#v, not %#v", found, wanted))
	}
}

type list = []interface{}

func main() {
	client := open()
	pong, err := client.Ping().Result()
	expect(err, nil)
	expect(pong, "PONG")

	// Push and look.
	expect(do(client, "QLPUSH", "foo", "1", contents), "OK")
	expect(do(client, "QLPEEK", "foo"), list{"1", contents})
	expect(do(client, "QLPUSH", "foo", "1", "x"), "ERR duplicate event 1")
	expect(do(client, "NOSUCH"), `ERR unknown command "NOSUCH"`)

	// Pipelines.
	pushes := client.Pipeline()
	for n := 2; n < 100; n++ {
		_ = pushes.Process(redis.NewCmd("QLPUSH", "foo", n, "x"))
	}
	replies, err := pushes.Exec()
	expect(err, nil)
	for _, reply := range replies {
		expect(reply.(*redis.Cmd).Val(), "OK")
	}
	expect(do(client, "QSTATUS", "foo"), list{list{"foo", int64(99), int64(0), int64(0)}})

	// Pop, acknowledge, give back.
	expect(do(client, "QRPOP", "foo", "EX", 30), list{"1", contents})
	expect(do(client, "QACK", "foo", 1, "REDO"), int64(1))
	expect(do(client, "QRPOP", "foo"), list{"1", contents})
	expect(do(client, "QACK", "foo", 1), int64(1))
	expect(do(client, "QACK", "foo", 1), int64(0))
	expect(do(client, "QRPOP", "none"), nil)

	// A consumer that waits: go-redis uses another connection of its pool.
	popped := make(chan interface{})
	go func() { popped <- do(client, "QRPOP", "bar", "EX", 0, "WAIT", 60) }()
	expect(do(client, "QRPUSH", "bar", "a", "x"), "OK")
	expect(<-popped, list{"a", "x"})
	expect(client.Close(), nil)
	fmt.Println("done")
}

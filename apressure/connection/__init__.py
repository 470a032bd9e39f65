"""Settings, connections and waiting: the only room that imports redis."""

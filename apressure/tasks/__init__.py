"""Tasks that run for minutes or days, in the format of Blueque."""

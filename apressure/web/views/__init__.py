"""The views of the page: what each one shows, as data. Templates and the JSON twin say the same."""

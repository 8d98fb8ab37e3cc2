"""The parameter-server tier: `client.Client` and `local.LocalStore` are stores, `server.Server` serves them."""

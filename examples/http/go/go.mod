module tenure-http-example

go 1.24

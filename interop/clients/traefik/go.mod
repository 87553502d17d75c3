module kv-server/interop/clients/traefik

go 1.26.0

require github.com/traefik/traefik/v3 v3.7.13

replace (
	github.com/abbot/go-http-auth => github.com/containous/go-http-auth v0.4.1-0.20260804094822-b975dcaa8c48
	github.com/gorilla/mux => github.com/containous/mux v0.0.0-20250523120546-41b6ec3aed59
	github.com/traefik/traefik/dynamic/ext => ./ext
)

exclude github.com/tencentcloud/tencentcloud-sdk-go v3.0.83+incompatible

// Package ext takes the place of a module that Traefik keeps in its own repository and does not publish. There it
// has fields of other editions of Traefik; none of them comes from a key-value store.
package ext

// HTTP has what is added to the HTTP part of a configuration.
type HTTP struct{}

// Router has what is added to a router.
type Router struct{}

package main

import (
	"crypto"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net"
	"time"
)

// Chains of which a part is changed at random, from a seed that does not change.
func random(count int) matrix {
	var all matrix
	source := rand.New(rand.NewPCG(1, 2))
	maybe := func(odds int) bool { return source.IntN(odds) == 0 }
	pick := func(of ...string) []string { return []string{of[source.IntN(len(of))]} }
	change := func(t template, odds int) {
		if maybe(odds) {
			t.ExtKeyUsage = []x509.ExtKeyUsage{[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageAny, x509.ExtKeyUsageClientAuth}[source.IntN(3)]}
		}
		if maybe(2 * odds) {
			t.NotAfter = start.Add(time.Hour)
		}
		if maybe(2 * odds) {
			t.KeyUsage = x509.KeyUsageDigitalSignature
		}
		if maybe(2 * odds) {
			t.IsCA = !t.IsCA
		}
		if maybe(4 * odds) {
			t.BasicConstraintsValid = false
		}
		if t.IsCA && maybe(odds) {
			t.MaxPathLen, t.MaxPathLenZero = source.IntN(2), true
		}
		if t.IsCA && maybe(odds) {
			t.PermittedDNSDomains = pick("test", "a.test", ".a.test", "b.test")
		}
		if t.IsCA && maybe(odds) {
			t.ExcludedDNSDomains = pick("b.test", "x.a.test", "c.x.a.test")
		}
		if t.IsCA && maybe(odds) {
			t.PermittedIPRanges = []*net.IPNet{network(pick("10.0.0.0/8", "fd00::/8", "10.1.0.0/16")[0])}
		}
	}
	keys := []crypto.Signer{p256(), p256(), p256()}
	for at := range count {
		top := issue(nil, "top", wish{key: keys[source.IntN(3)], change: func(t template) { t.IsCA = true; change(t, 8) }})
		above, chain := top, []*issued{}
		for range source.IntN(4) {
			wish := wish{key: keys[source.IntN(3)], change: func(t template) { t.IsCA = true; change(t, 8) }, spoil: maybe(20)}
			if maybe(20) {
				wish.old = version1
			}
			above = issue(above, pick("one", "two", "three", "top")[0], wish)
			chain = append([]*issued{above}, chain...)
		}
		leaf := issue(above, "leaf", wish{spoil: maybe(20), change: func(t template) {
			t.DNSNames = pick("a.test", "x.a.test", "*.a.test", "b.test")
			if maybe(3) {
				t.IPAddresses = []net.IP{address(pick("10.1.2.3", "10.2.2.3", "fd00::1")[0])}
			}
			change(t, 6)
		}})
		roots := []*issued{top}
		if maybe(4) && len(chain) > 1 {
			roots = append(roots, chain[1])
		}
		chain = append([]*issued{leaf}, chain...)
		source.Shuffle(len(chain)-1, func(i, j int) { chain[i+1], chain[j+1] = chain[j+1], chain[i+1] })
		all.add("random", fmt.Sprint(at), roots, chain)
	}
	return all
}

package cluster

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// Gates are addresses of the members for the apiserver, one for each. A gate forwards bytes while it is open:
// closed, it is the firewall that keeps writers away from the store.
type Gates struct {
	listeners []net.Listener
	lock      sync.Mutex
	isOpen    bool
	under     map[net.Conn]struct{}
}

// OpenGates makes open gates to the members' client URLs.
func (m *Members) OpenGates() (*Gates, error) {
	ports, err := freePorts(len(m.members))
	if err != nil {
		return nil, err
	}
	gates := &Gates{isOpen: true, under: map[net.Conn]struct{}{}}
	for i, one := range m.members {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", ports[i]))
		if err != nil {
			gates.Stop()
			return nil, err
		}
		gates.listeners = append(gates.listeners, listener)
		go gates.accept(listener, strings.TrimPrefix(one.clientURL, "https://"))
	}
	return gates, nil
}

// Endpoints are the URLs of the gates.
func (g *Gates) Endpoints() []string {
	var urls []string
	for _, listener := range g.listeners {
		urls = append(urls, "https://"+listener.Addr().String())
	}
	return urls
}

// Close ends all connections and takes no more.
func (g *Gates) Close() {
	g.lock.Lock()
	defer g.lock.Unlock()
	g.isOpen = false
	for connection := range g.under {
		_ = connection.Close()
	}
}

// Open takes connections again.
func (g *Gates) Open() {
	g.lock.Lock()
	defer g.lock.Unlock()
	g.isOpen = true
}

// Stop ends the gates.
func (g *Gates) Stop() {
	g.Close()
	for _, listener := range g.listeners {
		_ = listener.Close()
	}
}

func (g *Gates) accept(listener net.Listener, target string) {
	for {
		from, err := listener.Accept()
		if err != nil {
			return
		}
		go g.forward(from, target)
	}
}

func (g *Gates) forward(from net.Conn, target string) {
	defer from.Close()
	if !g.admit(from) {
		return
	}
	defer g.forget(from)
	to, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer to.Close()
	if !g.admit(to) {
		return
	}
	defer g.forget(to)
	go func() {
		_, _ = io.Copy(from, to)
		_ = from.Close()
	}()
	_, _ = io.Copy(to, from)
}

// admit notes a connection, so that closing the gate ends it. It fails when the gate is closed.
func (g *Gates) admit(connection net.Conn) bool {
	g.lock.Lock()
	defer g.lock.Unlock()
	if g.isOpen {
		g.under[connection] = struct{}{}
	}
	return g.isOpen
}

func (g *Gates) forget(connection net.Conn) {
	g.lock.Lock()
	defer g.lock.Unlock()
	delete(g.under, connection)
}

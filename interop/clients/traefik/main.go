// Command traefik runs Traefik's provider for etcd in this process, writes a configuration as its documentation
// does, and prints what the provider makes of it and of each change.
//
// ENDPOINTS are host:port. CA, CERT and KEY are files, NAME and PASSWORD those of a user; all of them may be missing.
// With KILL, a file, a change is made after a member is killed: the file is made, and KILL.done waited for. Nothing
// that differs between two runs is printed.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/traefik/traefik/v3/pkg/config/dynamic"
	"github.com/traefik/traefik/v3/pkg/provider/kv"
	"github.com/traefik/traefik/v3/pkg/provider/kv/etcd"
	"github.com/traefik/traefik/v3/pkg/safe"
	"github.com/traefik/traefik/v3/pkg/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// No call should come near it, however busy the machine is.
const timeout = time.Minute

func main() {
	zerolog.SetGlobalLevel(zerolog.Disabled)
	ctx, cancel := context.WithTimeout(context.Background(), 2*timeout)
	err := run(ctx)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	client, err := connect()
	if err != nil {
		return err
	}
	defer client.Close()
	for _, pair := range [][2]string{
		{"routers/web/rule", "Host(`shop.example`)"}, {"routers/web/entrypoints/0", "http"},
		{"routers/web/entrypoints/1", "https"}, {"routers/web/service", "web"}, {"routers/web/middlewares/0", "strip"},
		{"services/web/loadbalancer/servers/0/url", "http://10.0.0.1:80"},
		{"services/web/loadbalancer/servers/1/url", "http://10.0.0.2:80"},
		{"services/web/loadbalancer/healthcheck/path", "/health"}, {"middlewares/strip/stripprefix/prefixes/0", "/api"},
	} {
		if err := put(ctx, client, pair[0], pair[1]); err != nil {
			return err
		}
	}
	messages, err := provide()
	if err != nil {
		return err
	}
	if err := await(ctx, messages, "10.0.0.2"); err != nil {
		return err
	}
	if os.Getenv("KILL") != "" {
		if err := kill(ctx); err != nil {
			return err
		}
	}
	if err := put(ctx, client, "services/web/loadbalancer/servers/2/url", "http://10.0.0.3:80"); err != nil {
		return err
	}
	if err := await(ctx, messages, "10.0.0.3"); err != nil {
		return err
	}
	if err := put(ctx, client, "routers/web/rule", "Host(`other.example`)"); err != nil {
		return err
	}
	return await(ctx, messages, "other.example")
}

// The provider reads all keys that begin with it, and the user of the check may read below app/ only.
const root = "app/traefik"

// put repeats a write until it is acknowledged.
func put(ctx context.Context, client *clientv3.Client, key, value string) error {
	for {
		call, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := client.Put(call, root+"/http/"+key, value)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

// provide starts the provider.
func provide() (<-chan dynamic.Message, error) {
	provider := &etcd.Provider{
		Provider: kv.Provider{RootKey: root, Endpoints: strings.Split(os.Getenv("ENDPOINTS"), ",")},
		Username: os.Getenv("NAME"), Password: os.Getenv("PASSWORD"),
	}
	if authority := os.Getenv("CA"); authority != "" {
		provider.TLS = &types.ClientTLS{CA: authority, Cert: os.Getenv("CERT"), Key: os.Getenv("KEY")}
	}
	if err := provider.Init(); err != nil {
		return nil, err
	}
	messages := make(chan dynamic.Message, 100)
	return messages, provider.Provide(messages, safe.NewPool(context.Background()))
}

// await prints the first configuration that has the text.
func await(ctx context.Context, messages <-chan dynamic.Message, wanted string) error {
	for {
		select {
		case message := <-messages:
			text, err := json.Marshal(message.Configuration.HTTP)
			if err != nil {
				return err
			}
			if strings.Contains(string(text), wanted) {
				fmt.Println(message.ProviderName, string(text))
				return nil
			}
		case <-ctx.Done():
			return errors.Join(ctx.Err(), fmt.Errorf("no configuration with %s", wanted))
		}
	}
}

func kill(ctx context.Context) error {
	file := os.Getenv("KILL")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if _, err := os.Stat(file + ".done"); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return ctx.Err()
}

func connect() (*clientv3.Client, error) {
	config := clientv3.Config{
		Endpoints: strings.Split(os.Getenv("ENDPOINTS"), ","), DialTimeout: timeout, Logger: zap.NewNop(),
		Username: os.Getenv("NAME"), Password: os.Getenv("PASSWORD"),
	}
	if authority := os.Getenv("CA"); authority != "" {
		pem, err := os.ReadFile(authority)
		if err != nil {
			return nil, err
		}
		config.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
		config.TLS.RootCAs.AppendCertsFromPEM(pem)
	}
	if certificate := os.Getenv("CERT"); certificate != "" {
		pair, err := tls.LoadX509KeyPair(certificate, os.Getenv("KEY"))
		if err != nil {
			return nil, err
		}
		config.TLS.Certificates = []tls.Certificate{pair}
	}
	return clientv3.New(config)
}

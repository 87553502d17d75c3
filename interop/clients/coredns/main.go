// Command coredns runs CoreDNS with its plugin etcd in this process, writes records as the plugin's documentation
// does, and prints the answers to queries.
//
// ENDPOINTS are host:port. CA, CERT and KEY are files, NAME and PASSWORD those of a user; all of them may be missing.
// With KILL, a file, queries are made before and after a member is killed: the file is made, and KILL.done waited
// for. Nothing that differs between two runs is printed.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/etcd"
	"github.com/miekg/dns"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// No call should come near it, however busy the machine is.
const timeout = time.Minute

func main() {
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
	resolver, end, err := serve()
	if err != nil {
		return err
	}
	defer end()
	if err := records(ctx, client); err != nil {
		return err
	}
	if os.Getenv("KILL") != "" {
		return failover(ctx, client, resolver)
	}
	for _, query := range []struct {
		name string
		kind uint16
	}{
		{"web.shop.example.", dns.TypeA}, {"web.shop.example.", dns.TypeAAAA}, {"web.shop.example.", dns.TypeSRV},
		{"shop.example.", dns.TypeA}, {"*.shop.example.", dns.TypeA}, {"txt.shop.example.", dns.TypeTXT},
		{"alias.shop.example.", dns.TypeA}, {"alias.shop.example.", dns.TypeCNAME},
		{"mail.shop.example.", dns.TypeMX}, {"none.shop.example.", dns.TypeA},
		{"1.0.0.10.in-addr.arpa.", dns.TypePTR},
	} {
		if err := resolver.say(ctx, query.name, query.kind); err != nil {
			return err
		}
	}
	if _, err := client.Put(ctx, "/app/example/shop/web/x1", `{"host":"10.0.0.9","ttl":60}`); err != nil {
		return err
	}
	if _, err := client.Delete(ctx, "/app/example/shop/web/x2"); err != nil {
		return err
	}
	return resolver.say(ctx, "web.shop.example.", dns.TypeA)
}

// records writes what skydns keeps: a key with the name's labels in reverse, and a value in JSON.
func records(ctx context.Context, client *clientv3.Client) error {
	for key, value := range map[string]string{
		"example/shop/web/x1":   `{"host":"10.0.0.1","ttl":60,"port":8080,"priority":10,"weight":5}`,
		"example/shop/web/x2":   `{"host":"10.0.0.2","ttl":60,"port":8081,"priority":20}`,
		"example/shop/web/x3":   `{"host":"fd00::3","ttl":30}`,
		"example/shop/txt":      `{"text":"hello","ttl":60}`,
		"example/shop/alias":    `{"host":"web.shop.example","ttl":60}`,
		"example/shop/mail/m1":  `{"host":"10.0.0.5","mail":true,"priority":10,"ttl":60}`,
		"arpa/in-addr/10/0/0/1": `{"host":"web.shop.example","ttl":60}`,
	} {
		if _, err := client.Put(ctx, "/app/"+key, value); err != nil {
			return err
		}
	}
	return nil
}

// failover asks the same over and over while a member is killed, until it has got another record.
func failover(ctx context.Context, client *clientv3.Client, resolver resolver) error {
	if err := resolver.say(ctx, "web.shop.example.", dns.TypeA); err != nil {
		return err
	}
	file := os.Getenv("KILL")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	for {
		if _, err := os.Stat(file + ".done"); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for {
		call, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := client.Put(call, "/app/example/shop/new/x1", `{"host":"10.0.0.7","ttl":60}`)
		cancel()
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return err
		}
	}
	for {
		answer, err := resolver.ask(ctx, "new.shop.example.", dns.TypeA)
		if err == nil && len(answer.Answer) > 0 {
			return resolver.say(ctx, "new.shop.example.", dns.TypeA)
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// resolver is the address of CoreDNS.
type resolver string

// serve starts CoreDNS with a Corefile of its plugin's documentation.
func serve() (resolver, func(), error) {
	dnsserver.Directives = []string{"bind", "etcd"}
	dnsserver.Quiet = true
	caddy.Quiet = true
	socket, err := net.ListenPacket("udp", "127.0.0.1:0") // a free port
	if err != nil {
		return "", nil, err
	}
	port := socket.LocalAddr().(*net.UDPAddr).Port
	_ = socket.Close()
	var options []string
	scheme := "http"
	if os.Getenv("CA") != "" {
		scheme = "https"
		options = append(options, strings.Join(strings.Fields(fmt.Sprintf(
			"tls %s %s %s", os.Getenv("CERT"), os.Getenv("KEY"), os.Getenv("CA"))), " "))
	}
	if name := os.Getenv("NAME"); name != "" {
		options = append(options, fmt.Sprintf("credentials %s %s", name, os.Getenv("PASSWORD")))
	}
	var urls []string
	for _, endpoint := range strings.Split(os.Getenv("ENDPOINTS"), ",") {
		urls = append(urls, scheme+"://"+endpoint)
	}
	corefile := fmt.Sprintf(".:%d {\n bind 127.0.0.1\n etcd example in-addr.arpa {\n path app\n endpoint %s\n %s\n }\n}\n",
		port, strings.Join(urls, " "), strings.Join(options, "\n "))
	instance, err := caddy.Start(caddy.CaddyfileInput{Contents: []byte(corefile), ServerTypeName: "dns"})
	if err != nil {
		return "", nil, err
	}
	return resolver(fmt.Sprintf("127.0.0.1:%d", port)), func() { _ = instance.Stop() }, nil
}

func (r resolver) ask(ctx context.Context, name string, kind uint16) (*dns.Msg, error) {
	question := new(dns.Msg)
	question.SetQuestion(name, kind)
	client := dns.Client{Timeout: timeout}
	answer, _, err := client.ExchangeContext(ctx, question, string(r))
	return answer, err
}

// say prints the answer to a query. The plugin names a target of its own by a hash of the key.
func (r resolver) say(ctx context.Context, name string, kind uint16) error {
	answer, err := r.ask(ctx, name, kind)
	if err != nil {
		return err
	}
	var lines []string
	for _, record := range slices.Concat(answer.Answer, answer.Extra) {
		lines = append(lines, strings.ReplaceAll(record.String(), "\t", " "))
	}
	slices.Sort(lines)
	fmt.Println(dns.TypeToString[kind], name, dns.RcodeToString[answer.Rcode], lines)
	return nil
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

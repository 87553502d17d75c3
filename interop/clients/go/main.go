// Command go uses etcd's own client package as its documentation does, and prints what it answers.
//
// ENDPOINTS are host:port, separated by commas. CA, CERT and KEY are files, NAME and PASSWORD those of a user; all
// of them may be missing. With KILL, a file, the client writes before and after a member is killed: see failover.go.
// Nothing that differs between two runs is printed.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// No call should come near it, however busy the machine is.
const timeout = time.Minute

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	client, err := connect()
	if err != nil {
		return err
	}
	defer client.Close()
	parts := []func(context.Context, *clientv3.Client) error{
		values, transactions, watches, leases, concurrent, namespaces, mirrors, leasedReads, orderedReads, names,
		refusals,
	}
	if os.Getenv("KILL") != "" {
		parts = []func(context.Context, *clientv3.Client) error{failover}
	}
	for _, part := range parts {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		err := part(ctx, client)
		cancel()
		if err != nil {
			return err
		}
	}
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
		if !config.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("no certificate in " + authority)
		}
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

// say prints a line.
func say(parts ...any) { fmt.Println(parts...) }

// failure is the text of an error.
func failure(err error) string {
	if err == nil {
		return "accepted"
	}
	return err.Error()
}

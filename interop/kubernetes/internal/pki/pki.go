// Package pki writes the keys and certificates of a control plane, under the names and with the uses that
// kubeadm gives them: an authority for etcd, one for the apiserver, one for the front proxy, and the key of
// service accounts.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Validity of every certificate. A run takes minutes.
const validity = 24 * time.Hour

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

type leaf struct {
	path          string
	name          string
	organisations []string
	isServer      bool
}

// Dir is a directory with the files of kubeadm's /etc/kubernetes/pki.
type Dir string

// File is the path of a file in the directory, such as "etcd/ca.crt".
func (d Dir) File(name string) string { return filepath.Join(string(d), name) }

// Write makes all keys and certificates below dir.
func Write(dir string) (Dir, error) {
	if err := os.MkdirAll(filepath.Join(dir, "etcd"), 0o700); err != nil {
		return "", err
	}
	leaves := map[string][]leaf{
		"etcd/ca": {
			{path: "etcd/server", name: "member", isServer: true},
			{path: "etcd/peer", name: "member", isServer: true},
			{path: "etcd/healthcheck-client", name: "kube-etcd-healthcheck-client"},
			{path: "apiserver-etcd-client", name: "kube-apiserver-etcd-client"},
		},
		"ca": {
			{path: "apiserver", name: "kube-apiserver", isServer: true},
			{path: "apiserver-kubelet-client", name: "kube-apiserver-kubelet-client",
				organisations: []string{"kubeadm:cluster-admins"}},
			{path: "admin", name: "kubernetes-super-admin", organisations: []string{"system:masters"}},
		},
		"front-proxy-ca": {{path: "front-proxy-client", name: "front-proxy-client"}},
	}
	for name, issued := range leaves {
		signer, err := newAuthority(dir, name)
		if err != nil {
			return "", fmt.Errorf("authority %s: %w", name, err)
		}
		for _, certificate := range issued {
			if err := signer.issue(dir, certificate); err != nil {
				return "", fmt.Errorf("certificate %s: %w", certificate.path, err)
			}
		}
	}
	return Dir(dir), serviceAccountKey(dir)
}

func newAuthority(dir, name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	certificate, err := sign(template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &authority{certificate, key}, writeCertificate(filepath.Join(dir, name+".crt"), certificate)
}

func (a *authority) issue(dir string, wanted leaf) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: wanted.name, Organization: wanted.organisations},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if wanted.isServer {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		template.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1)}
	}
	certificate, err := sign(template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		return err
	}
	if err := writeCertificate(filepath.Join(dir, wanted.path+".crt"), certificate); err != nil {
		return err
	}
	return writeKey(filepath.Join(dir, wanted.path+".key"), key)
}

func sign(template, parent *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = now.Add(-time.Hour), now.Add(validity)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func serviceAccountKey(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	if err := writePem(filepath.Join(dir, "sa.pub"), "PUBLIC KEY", public); err != nil {
		return err
	}
	return writeKey(filepath.Join(dir, "sa.key"), key)
}

func writeCertificate(path string, certificate *x509.Certificate) error {
	return writePem(path, "CERTIFICATE", certificate.Raw)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePem(path, "EC PRIVATE KEY", der)
}

func writePem(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"net"
	"net/url"
	"time"
)

// A certificate with its key.
type issued struct {
	der []byte
	key crypto.Signer
}

// What a certificate says, in the order in which it is made: change is applied to the template, old to what was made
// from it, before it is signed again.
type wish struct {
	key    crypto.Signer
	change func(*x509.Certificate)
	old    func(*tbs)
	sign   asn1.ObjectIdentifier
	spoil  bool
}

// The part of a certificate that is signed.
type tbs struct {
	Version    int `asn1:"optional,explicit,default:0,tag:0"`
	Serial     *big.Int
	Algorithm  pkix.AlgorithmIdentifier
	Issuer     asn1.RawValue
	Validity   asn1.RawValue
	Subject    asn1.RawValue
	Key        asn1.RawValue
	Extensions []pkix.Extension `asn1:"omitempty,optional,explicit,tag:3"`
}

type certificate struct {
	TBS       asn1.RawValue
	Algorithm pkix.AlgorithmIdentifier
	Signature asn1.BitString
}

var (
	start = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	end   = time.Date(2199, 1, 1, 0, 0, 0, 0, time.UTC)

	sha1WithRSA     = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 5}
	ecdsaWithSHA256 = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}
	serial          int64
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func curve(curve elliptic.Curve) crypto.Signer { return must(ecdsa.GenerateKey(curve, rand.Reader)) }
func p256() crypto.Signer                      { return curve(elliptic.P256()) }
func rsaKey(bits int) crypto.Signer            { return must(rsa.GenerateKey(rand.Reader, bits)) }
func edKey() crypto.Signer {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	return must(key, err)
}

// issue makes a certificate of issuer; a nil issuer signs itself.
func issue(issuer *issued, name string, wish wish) *issued {
	serial++
	if wish.key == nil {
		wish.key = p256()
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
		NotBefore: start, NotAfter: end, BasicConstraintsValid: true,
	}
	if wish.change != nil {
		wish.change(template)
	}
	parent, signer := template, wish.key
	if issuer != nil {
		parent, signer = must(x509.ParseCertificate(issuer.der)), issuer.key
		// What cannot sign in Go's eyes signs all the same here.
		parent.KeyUsage, parent.MaxPathLen, parent.MaxPathLenZero = 0, 0, false
	}
	der := must(x509.CreateCertificate(rand.Reader, template, parent, wish.key.Public(), signer))
	if wish.old != nil || wish.sign != nil {
		der = signAgain(der, signer, wish)
	}
	if wish.spoil {
		der[len(der)-1] ^= 1
	}
	return &issued{der, wish.key}
}

func signAgain(der []byte, signer crypto.Signer, wish wish) []byte {
	var whole certificate
	var inner tbs
	must(asn1.Unmarshal(der, &whole))
	must(asn1.Unmarshal(whole.TBS.FullBytes, &inner))
	if wish.old != nil {
		wish.old(&inner)
	}
	if wish.sign != nil {
		inner.Algorithm = pkix.AlgorithmIdentifier{Algorithm: wish.sign, Parameters: asn1.NullRawValue}
	}
	whole.Algorithm = inner.Algorithm
	whole.TBS = asn1.RawValue{FullBytes: must(asn1.Marshal(inner))}
	hash, digest := crypto.Hash(crypto.SHA256), sha256.Sum256(whole.TBS.FullBytes)
	sum := digest[:]
	if wish.sign.Equal(sha1WithRSA) {
		of := sha1.Sum(whole.TBS.FullBytes)
		hash, sum = crypto.SHA1, of[:]
	}
	signature := must(signer.Sign(rand.Reader, sum, hash))
	whole.Signature = asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}
	return must(asn1.Marshal(whole))
}

func version1(inner *tbs) { inner.Version, inner.Extensions = 0, nil }

func authority(more func(*x509.Certificate)) wish {
	return wish{change: func(template *x509.Certificate) {
		template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign
		if more != nil {
			more(template)
		}
	}}
}

func client(more func(*x509.Certificate)) wish {
	return wish{change: func(template *x509.Certificate) {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		template.DNSNames = []string{"client.test"}
		if more != nil {
			more(template)
		}
	}}
}

func (wish wish) with(key crypto.Signer) wish {
	wish.key = key
	return wish
}

func network(text string) *net.IPNet {
	_, network, err := net.ParseCIDR(text)
	return must(network, err)
}

func address(text string) net.IP {
	ip := net.ParseIP(text)
	if short := ip.To4(); short != nil {
		return short
	}
	return ip
}

func uri(text string) *url.URL { return must(url.Parse(text)) }

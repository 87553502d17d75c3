package main

import (
	"bytes"
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"net"
	"net/url"
	"time"
)

// One question to etcd: is this chain accepted?
type question struct {
	name, role string
	roots      []*issued
	chain      []*issued
}

type matrix []question

type template = *x509.Certificate

func (all *matrix) add(role, name string, roots, chain []*issued) {
	*all = append(*all, question{name, role, roots, chain})
}

// The chain ends below one root.
func (all *matrix) client(name string, root *issued, chain ...*issued) {
	all.add("client", name, []*issued{root}, chain)
}

func cases() matrix {
	var all matrix
	root := issue(nil, "root", authority(nil))
	versions(&all, root)
	usages(&all, root)
	keys(&all, root)
	dates(&all, root)
	names(&all, root)
	paths(&all, root)
	constraints(&all)
	forged(&all, root)
	extensions(&all, root)
	odd(&all, root)
	servers(&all, root)
	shown(&all, root)
	return all
}

func versions(all *matrix, root *issued) {
	old := issue(nil, "old root", wish{old: version1})
	all.client("version 3", root, issue(root, "c", client(nil)))
	all.client("version 1", root, issue(root, "c", wish{old: version1}))
	all.client("version 1 of a root of version 1", old, issue(old, "c", wish{old: version1}))
	all.client("version 3 of a root of version 1", old, issue(old, "c", client(nil)))
	middle := issue(root, "middle", wish{old: version1})
	all.client("intermediate of version 1", root, issue(middle, "c", client(nil)), middle)
	all.client("version 2 with extensions", root, issue(root, "c", wish{old: func(t *tbs) { t.Version = 1 }}))
	all.client("version 4", root, issue(root, "c", wish{old: func(t *tbs) { t.Version = 3 }}))
	self := issue(nil, "self", authority(nil))
	all.client("self-signed CA:TRUE, trusted", self, self)
	all.client("self-signed CA:TRUE, not trusted", root, self)
	plain := issue(nil, "self", client(nil))
	all.client("self-signed CA:FALSE, trusted", plain, plain)
	all.client("self-signed CA:FALSE, not trusted", root, plain)
	all.client("of a trusted certificate with CA:FALSE", plain, issue(plain, "c", client(nil)))
	all.client("CA:TRUE of a root", root, issue(root, "c", authority(nil)))
	ancient := issue(nil, "self", wish{old: version1})
	all.client("self-signed version 1, trusted", ancient, ancient)
}

func usages(all *matrix, root *issued) {
	use := func(known ...x509.ExtKeyUsage) func(template) {
		return func(t template) { t.ExtKeyUsage = known }
	}
	other := asn1.ObjectIdentifier{1, 2, 3, 4}
	for name, change := range map[string]func(template){
		"usage clientAuth":                use(x509.ExtKeyUsageClientAuth),
		"usage serverAuth":                use(x509.ExtKeyUsageServerAuth),
		"usage any":                       use(x509.ExtKeyUsageAny),
		"usage any and serverAuth":        use(x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageAny),
		"usage both":                      use(x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth),
		"usage none":                      use(),
		"usage emailProtection":           use(x509.ExtKeyUsageEmailProtection),
		"usage unknown":                   func(t template) { t.ExtKeyUsage, t.UnknownExtKeyUsage = nil, []asn1.ObjectIdentifier{other} },
		"usage unknown and clientAuth":    func(t template) { t.UnknownExtKeyUsage = []asn1.ObjectIdentifier{other} },
		"key usage keyEncipherment alone": func(t template) { t.KeyUsage = x509.KeyUsageKeyEncipherment },
		"key usage keyCertSign alone":     func(t template) { t.KeyUsage = x509.KeyUsageCertSign },
	} {
		all.client(name, root, issue(root, "c", client(change)))
	}
	for _, usage := range []struct {
		name string
		use  x509.ExtKeyUsage
	}{{"serverAuth", x509.ExtKeyUsageServerAuth}, {"any", x509.ExtKeyUsageAny}, {"clientAuth", x509.ExtKeyUsageClientAuth}} {
		middle := issue(root, "middle", authority(use(usage.use)))
		all.client("intermediate with usage "+usage.name, root, issue(middle, "c", client(nil)), middle)
		top := issue(nil, "top", authority(use(usage.use)))
		all.client("root with usage "+usage.name, top, issue(top, "c", client(nil)))
	}
}

func keys(all *matrix, root *issued) {
	short, rsa2048 := rsaKey(1024), rsaKey(2048)
	p384, p521, ed := curve(elliptic.P384()), curve(elliptic.P521()), edKey()
	for _, key := range []struct {
		name string
		wish wish
	}{
		{"RSA 1024", client(nil).with(short)}, {"RSA 2048", client(nil).with(rsa2048)},
		{"RSA 4096", client(nil).with(rsaKey(4096))}, {"P-384", client(nil).with(p384)},
		{"P-521", client(nil).with(p521)}, {"Ed25519", client(nil).with(ed)},
	} {
		all.client("key "+key.name, root, issue(root, "c", key.wish))
	}
	by := func(name string, top *issued, algorithm x509.SignatureAlgorithm) {
		leaf := issue(top, "c", client(func(t template) { t.SignatureAlgorithm = algorithm }))
		all.client("signed by "+name, top, leaf)
	}
	rsaRoot := issue(nil, "rsa", authority(nil).with(rsa2048))
	by("RSA 2048 with SHA-256", rsaRoot, x509.SHA256WithRSA)
	by("RSA 2048 with SHA-384", rsaRoot, x509.SHA384WithRSA)
	by("RSA 2048 with SHA-512", rsaRoot, x509.SHA512WithRSA)
	by("RSA-PSS with SHA-256", rsaRoot, x509.SHA256WithRSAPSS)
	by("RSA-PSS with SHA-384", rsaRoot, x509.SHA384WithRSAPSS)
	by("RSA-PSS with SHA-512", rsaRoot, x509.SHA512WithRSAPSS)
	by("RSA 1024 with SHA-256", issue(nil, "rsa", authority(nil).with(short)), x509.SHA256WithRSA)
	by("P-256 with SHA-384", root, x509.ECDSAWithSHA384)
	by("P-256 with SHA-512", root, x509.ECDSAWithSHA512)
	by("P-384 with SHA-384", issue(nil, "p384", authority(nil).with(p384)), x509.ECDSAWithSHA384)
	by("P-384 with SHA-256", issue(nil, "p384", authority(nil).with(p384)), x509.ECDSAWithSHA256)
	large := issue(nil, "p521", authority(nil).with(p521))
	by("P-521 with SHA-256", large, x509.ECDSAWithSHA256)
	by("P-521 with SHA-384", large, x509.ECDSAWithSHA384)
	by("P-521 with SHA-512", large, x509.ECDSAWithSHA512)
	by("Ed25519", issue(nil, "ed", authority(nil).with(ed)), x509.PureEd25519)
	weak := client(nil)
	weak.sign = sha1WithRSA
	all.client("signed by RSA 2048 with SHA-1", rsaRoot, issue(rsaRoot, "c", weak))
	odd := client(nil)
	odd.sign = ecdsaWithSHA256
	all.client("algorithm of the signature with parameters", root, issue(root, "c", odd))
}

func dates(all *matrix, root *issued) {
	expired := func(t template) { t.NotAfter = start.Add(time.Hour) }
	early := func(t template) { t.NotBefore = end.Add(-time.Hour) }
	for name, change := range map[string]func(template){"expired": expired, "not yet valid": early} {
		all.client(name, root, issue(root, "c", client(change)))
		middle := issue(root, "middle", authority(change))
		all.client("intermediate "+name, root, issue(middle, "c", client(nil)), middle)
		top := issue(nil, "top", authority(change))
		all.client("root "+name, top, issue(top, "c", client(nil)))
		self := issue(nil, "self", client(change))
		all.client("trusted itself and "+name, self, self)
	}
}

func names(all *matrix, root *issued) {
	all.client("no alternative name", root, issue(root, "c", client(func(t template) { t.DNSNames = nil })))
	all.client("empty subject", root, issue(root, "", client(nil)))
	all.client("neither subject nor alternative name", root, issue(root, "", client(func(t template) { t.DNSNames = nil })))
	nameless := issue(nil, "", authority(nil))
	all.client("root without a name", nameless, issue(nameless, "c", client(nil)))
	// Once UTF8String, once PrintableString.
	other := issue(nil, "x", authority(func(t template) {
		t.RawSubject = must(asn1.Marshal(pkix.RDNSequence{{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: asn1.RawValue{Tag: asn1.TagUTF8String, Bytes: []byte("root")}}}}))
	}).with(root.key))
	all.client("issuer in another encoding", other, issue(root, "c", client(nil)))
	for _, row := range []struct {
		name string
		tag  int
		text string
	}{
		{"UTF8String", 12, "root"}, {"UTF8String of other bytes", 12, "ro\xffot"},
		{"NumericString", 18, "12 3"}, {"NumericString with letters", 18, "root"},
		{"PrintableString with * and &", 19, "a*&"}, {"PrintableString with _", 19, "svc_a"}, {"PrintableString with @", 19, "svc@a"},
		{"T61String", 20, "svc_a\xe9"},
		{"IA5String", 22, "svc_a@x"}, {"IA5String of other bytes", 22, "ro\xc3\xa9t"},
		{"BMPString", 30, "\x00r\x00o\x00\x00"}, {"BMPString of an odd length", 30, "abc"}, {"BMPString with surrogates", 30, "\xd8\x3d\xde\x00"},
		{"BOOLEAN", 1, "\xff"}, {"OCTET STRING", 4, "root"}, {"VisibleString", 26, "root"}, {"GeneralString", 27, "root"},
		{"UniversalString", 28, "\x00\x00\x00r"},
	} {
		all.client("name: common name: "+row.name, root, issue(root, "c", client(named(spelled(3, row.tag, row.text)))))
	}
	for name, tag := range map[string]int{"BOOLEAN": 1, "VisibleString": 26} {
		all.client("name: organization: "+name, root, issue(root, "c", client(named(spelled(10, tag, "\xff"), spelled(3, 12, "root")))))
	}
	all.client("name: an empty set", root, issue(root, "c", client(named(asn1.RawValue{Tag: 17, IsCompound: true}, spelled(3, 12, "root")))))
	good, bad := issue(root, "c", client(nil)), authority(named(spelled(3, 26, "root")))
	all.client("name: of a superfluous intermediate", root, good, issue(root, "x", bad))
	of := client(nil)
	of.old = func(t *tbs) { t.Issuer = asn1.RawValue{FullBytes: sets(spelled(3, 26, "root"))} }
	leaf, authority := issue(root, "c", of), issue(nil, "x", bad.with(root.key))
	all.client("name: of the issuer", root, leaf)
	all.client("name: of the root and the issuer", authority, leaf)
	all.add("client", "name: of another root", []*issued{root, authority}, []*issued{good})
}

// A set of one attribute, a text with this tag.
func spelled(kind, tag int, text string) asn1.RawValue {
	attribute := must(asn1.Marshal(struct {
		Kind  asn1.ObjectIdentifier
		Value asn1.RawValue
	}{asn1.ObjectIdentifier{2, 5, 4, kind}, asn1.RawValue{Tag: tag, Bytes: []byte(text)}}))
	return asn1.RawValue{Tag: asn1.TagSet, IsCompound: true, Bytes: attribute}
}

func sets(all ...asn1.RawValue) []byte { return must(asn1.Marshal(all)) }

func named(all ...asn1.RawValue) func(template) {
	return func(t template) { t.RawSubject = sets(all...) }
}

func paths(all *matrix, root *issued) {
	length := func(most int) func(template) {
		return func(t template) { t.MaxPathLen, t.MaxPathLenZero = most, most == 0 }
	}
	for _, row := range []struct {
		name          string
		of            int
		intermediates int
	}{{"path length 0 and none", 0, 0}, {"path length 0 and one", 0, 1}, {"path length 1 and one", 1, 1}, {"path length 1 and two", 1, 2}} {
		top := issue(nil, "top", authority(length(row.of)))
		chain, above := []*issued{}, top
		for range row.intermediates {
			above = issue(above, "middle"+string(rune('a'+len(chain))), authority(nil))
			chain = append([]*issued{above}, chain...)
		}
		all.client("root with "+row.name, top, append([]*issued{issue(above, "c", client(nil))}, chain...)...)
	}
	zero := issue(root, "zero", authority(length(0)))
	below := issue(zero, "below", authority(nil))
	all.client("intermediate with path length 0 and one below", root, issue(below, "c", client(nil)), below, zero)
	all.client("intermediate with path length 0", root, issue(zero, "c", client(nil)), zero)
	again := issue(zero, "zero", authority(nil))
	all.client("path length 0 and one of the same name below", root, issue(again, "c", client(nil)), again, zero)
	chain, above := []*issued{}, root
	for at := range 12 {
		above = issue(above, "middle"+string(rune('a'+at)), authority(nil))
		chain = append([]*issued{above}, chain...)
	}
	all.client("twelve intermediates", root, append([]*issued{issue(above, "c", client(nil))}, chain...)...)
	one := issue(root, "one", authority(nil))
	two := issue(one, "two", authority(nil))
	leaf := issue(two, "c", client(nil))
	all.client("intermediates in another order", root, leaf, one, two)
	all.client("intermediates with others among them", root, leaf, issue(nil, "other", authority(nil)), two, leaf, one)
	all.client("an intermediate missing", root, leaf, two)
	all.client("an intermediate is trusted", two, leaf)
	all.client("the root shown as well", root, issue(root, "c", client(nil)), root)
	crossed := issue(issue(nil, "elsewhere", authority(nil)), "root", authority(nil).with(root.key))
	all.client("the root cross-signed by another one as well", root, issue(root, "c", client(nil)), crossed)
}

func constraints(all *matrix) {
	host := func(names ...string) func(template) { return func(t template) { t.DNSNames = names } }
	within := func(name string, constrain, change func(template)) {
		top := issue(nil, "top", authority(func(t template) { t.PermittedDNSDomainsCritical = true; constrain(t) }))
		all.client("constraints: "+name, top, issue(top, "c", client(change)))
	}
	permitted := func(t template) { t.PermittedDNSDomains = []string{"a.test"} }
	excluded := func(t template) { t.ExcludedDNSDomains = []string{"b.a.test"} }
	within("DNS permitted", permitted, host("a.test", "x.a.test"))
	within("DNS permitted in capitals", permitted, host("X.A.TEST"))
	within("DNS not permitted", permitted, host("b.test"))
	within("DNS one of two not permitted", permitted, host("a.test", "b.test"))
	within("DNS not permitted, ends alike", permitted, host("xa.test"))
	within("DNS wildcard permitted", permitted, host("*.a.test"))
	within("DNS wildcard above the permitted", func(t template) { t.PermittedDNSDomains = []string{"x.a.test"} }, host("*.a.test"))
	within("DNS leading dot, below", func(t template) { t.PermittedDNSDomains = []string{".a.test"} }, host("x.a.test"))
	within("DNS leading dot, itself", func(t template) { t.PermittedDNSDomains = []string{".a.test"} }, host("a.test"))
	within("DNS not excluded", excluded, host("a.test", "c.a.test"))
	within("DNS excluded", excluded, host("b.a.test"))
	within("DNS below the excluded", excluded, host("x.b.a.test"))
	within("DNS wildcard over the excluded", excluded, host("*.a.test"))
	within("DNS permitted and no alternative name", permitted, host())
	within("DNS permitted and an address", permitted, func(t template) { t.DNSNames, t.IPAddresses = nil, []net.IP{address("10.0.0.1")} })
	within("DNS name with a final dot", permitted, host("a.test."))
	inside := func(t template) { t.PermittedIPRanges = []*net.IPNet{network("10.0.0.0/8")} }
	ip := func(text string) func(template) {
		return func(t template) { t.DNSNames, t.IPAddresses = nil, []net.IP{address(text)} }
	}
	within("address permitted", inside, ip("10.1.2.3"))
	within("address not permitted", inside, ip("11.1.2.3"))
	within("address of the other family", inside, ip("fd00::1"))
	within("address permitted in IPv6", func(t template) { t.PermittedIPRanges = []*net.IPNet{network("fd00::/8")} }, ip("fd00::1"))
	within("address excluded", func(t template) { t.ExcludedIPRanges = []*net.IPNet{network("10.0.0.0/9")} }, ip("10.1.2.3"))
	within("address next to the excluded", func(t template) { t.ExcludedIPRanges = []*net.IPNet{network("10.0.0.0/9")} }, ip("10.129.2.3"))
	mail := func(text string) func(template) { return func(t template) { t.EmailAddresses = []string{text} } }
	within("mailbox permitted", func(t template) { t.PermittedEmailAddresses = []string{"a.test"} }, mail("x@a.test"))
	within("mailbox not permitted", func(t template) { t.PermittedEmailAddresses = []string{"a.test"} }, mail("x@b.test"))
	within("mailbox permitted by name", func(t template) { t.PermittedEmailAddresses = []string{"x@a.test"} }, mail("x@A.test"))
	within("mailbox not permitted by name", func(t template) { t.PermittedEmailAddresses = []string{"x@a.test"} }, mail("y@a.test"))
	within("mailbox excluded", func(t template) { t.ExcludedEmailAddresses = []string{"a.test"} }, mail("x@a.test"))
	link := func(text string) func(template) { return func(t template) { t.URIs = []*url.URL{uri(text)} } }
	within("URI permitted", func(t template) { t.PermittedURIDomains = []string{"a.test"} }, link("spiffe://a.test/ns/x"))
	within("URI not permitted", func(t template) { t.PermittedURIDomains = []string{"a.test"} }, link("spiffe://b.test/ns/x"))
	within("URI excluded", func(t template) { t.ExcludedURIDomains = []string{"a.test"} }, link("https://a.test:1/x"))
	within("URI without a host", permitted, func(t template) { t.DNSNames, t.URIs = nil, []*url.URL{uri("urn:x")} })
	directory := func(critical bool) func(template) {
		// permittedSubtrees of one directoryName, O=a.
		value := []byte{0x30, 0x14, 0xa0, 0x12, 0x30, 0x10, 0xa4, 0x0e, 0x30, 0x0c, 0x31, 0x0a, 0x30, 0x08, 0x06, 0x03, 0x55, 0x04, 0x0a, 0x0c, 0x01, 'a'}
		return func(t template) {
			t.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 30}, Critical: critical, Value: value}}
		}
	}
	within("directory name, critical", directory(true), nil)
	within("directory name, not critical", directory(false), nil)
	top := issue(nil, "top", authority(nil))
	middle := issue(top, "middle", authority(permitted))
	all.client("constraints: of an intermediate, kept", top, issue(middle, "c", client(host("x.a.test"))), middle)
	all.client("constraints: of an intermediate, not kept", top, issue(middle, "c", client(host("b.test"))), middle)
	below := issue(middle, "below", authority(func(t template) { t.PermittedDNSDomains = []string{"test"} }))
	all.client("constraints: widened below", top, issue(below, "c", client(host("b.test"))), below, middle)
}

func forged(all *matrix, root *issued) {
	good := issue(root, "c", client(nil))
	spoilt := client(nil)
	spoilt.spoil = true
	all.client("forged: signature of a spoilt bit", root, issue(root, "c", spoilt))
	same := issue(nil, "root", authority(nil))
	all.client("forged: another authority of the same name", root, issue(same, "c", client(nil)))
	all.client("forged: another authority of the same name, shown", root, issue(same, "c", client(nil)), same)
	all.client("forged: of a client", root, issue(good, "x", client(nil)), good)
	unsaid := issue(root, "middle", wish{change: func(t template) { t.BasicConstraintsValid = false }})
	all.client("forged: of one without basic constraints", root, issue(unsaid, "x", client(nil)), unsaid)
	mute := issue(root, "middle", authority(func(t template) { t.KeyUsage = x509.KeyUsageDigitalSignature }))
	all.client("forged: of an authority without keyCertSign", root, issue(mute, "x", client(nil)), mute)
	top := issue(nil, "top", authority(func(t template) { t.KeyUsage = x509.KeyUsageCRLSign }))
	all.client("forged: of a root without keyCertSign", top, issue(top, "x", client(nil)))
	swapped := &issued{bytes.Clone(good.der), p256()}
	all.client("forged: the key of another one", root, swapped)
	part := &issued{append(bytes.Clone(good.der), 0), good.key}
	all.client("forged: bytes after the end", root, part)
}

func extensions(all *matrix, root *issued) {
	unknown := func(critical bool) func(template) {
		return func(t template) {
			t.ExtraExtensions = append(t.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Critical: critical, Value: []byte{5, 0}})
		}
	}
	all.client("unknown extension", root, issue(root, "c", client(unknown(false))))
	all.client("unknown critical extension", root, issue(root, "c", client(unknown(true))))
	middle := issue(root, "middle", authority(unknown(true)))
	all.client("intermediate with an unknown critical extension", root, issue(middle, "c", client(nil)), middle)
	twice := client(nil)
	twice.old = func(t *tbs) { t.Extensions = append(t.Extensions, t.Extensions[0]) }
	all.client("an extension twice", root, issue(root, "c", twice))
	explicit := func(t template) {
		t.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 36}, Critical: true, Value: []byte{0x30, 3, 0x80, 1, 0}}}
	}
	policies := func(t template) { t.Policies = []x509.OID{must(x509.OIDFromInts([]uint64{1, 2, 3}))} }
	all.client("policies", root, issue(root, "c", client(policies)))
	strict := issue(root, "middle", authority(explicit))
	all.client("policies required and none", root, issue(strict, "c", client(nil)), strict)
	both := issue(root, "middle", authority(func(t template) { explicit(t); policies(t) }))
	all.client("policies required and there", root, issue(both, "c", client(policies)), both)
	number := func(serial *big.Int) wish {
		wish := client(nil)
		wish.old = func(t *tbs) { t.Serial = serial }
		return wish
	}
	all.client("serial number 0", root, issue(root, "c", number(big.NewInt(0))))
	all.client("serial number negative", root, issue(root, "c", number(big.NewInt(-5))))
	all.client("serial number of 30 bytes", root, issue(root, "c", number(new(big.Int).Lsh(big.NewInt(1), 238))))
	all.client("key identifiers that do not match", root, issue(root, "c", client(func(t template) {
		t.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 35}, Value: []byte{0x30, 3, 0x80, 1, 7}}}
	})))
	all.client("critical alternative name of another kind", root, issue(root, "c", client(func(t template) {
		t.DNSNames = nil
		t.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Critical: true, Value: []byte{0x30, 4, 0x88, 2, 0x2a, 3}}}
	})))
}

// What no tool makes by mistake.
func odd(all *matrix, root *issued) {
	extension := func(name string, id []int, critical bool, value ...byte) {
		made := pkix.Extension{Id: id, Critical: critical, Value: value}
		change := func(t template) { t.ExtraExtensions, t.DNSNames = append(t.ExtraExtensions, made), nil }
		all.client("odd: "+name, root, issue(root, "c", client(change)))
	}
	san, constraints, basic := []int{2, 5, 29, 17}, []int{2, 5, 29, 30}, []int{2, 5, 29, 19}
	extension("alternative name empty", san, false, 0x30, 0)
	extension("alternative name: an address of 5 bytes", san, false, 0x30, 7, 0x87, 5, 1, 2, 3, 4, 5)
	extension("alternative name: a zero byte in a name", san, false, 0x30, 5, 0x82, 3, 'a', 0, 'b')
	extension("alternative name: not ASCII", san, false, 0x30, 5, 0x82, 3, 'a', 0xc3, 0xbc)
	extension("alternative name: length in two bytes", san, false, 0x30, 0x81, 3, 0x82, 1, 'a')
	extension("alternative name: bytes after it", san, false, 0x30, 3, 0x82, 1, 'a', 0)
	extension("extended key usage empty", []int{2, 5, 29, 37}, false, 0x30, 0)
	extension("key usage empty", []int{2, 5, 29, 15}, true, 3, 1, 0)
	extension("name constraints empty", constraints, true, 0x30, 0)
	extension("name constraints of a client", constraints, true, 0x30, 7, 0xa0, 5, 0x30, 3, 0x82, 1, 'x')
	extension("path length of a client", basic, true, 0x30, 3, 2, 1, 5)
	extension("path length negative", basic, true, 0x30, 6, 1, 1, 0xff, 2, 1, 0xff)
	extension("authority with a boolean that is 1", basic, true, 0x30, 3, 1, 1, 1)
	dated := func(name string, validity ...byte) {
		wish := client(nil)
		wish.old = func(t *tbs) { t.Validity = asn1.RawValue{FullBytes: validity} }
		all.client("odd: "+name, root, issue(root, "c", wish))
	}
	times := func(tag byte, texts ...string) []byte {
		var inside []byte
		for _, text := range texts {
			inside = append(append(inside, tag, byte(len(text))), text...)
		}
		return append([]byte{0x30, byte(len(inside))}, inside...)
	}
	dated("ends in 9999", times(24, "20200101000000Z", "99991231235959Z")...)
	dated("ends before it begins", times(23, "300101000000Z", "200101000000Z")...)
	dated("times without seconds", times(23, "2001010000Z", "4901010000Z")...)
	dated("times with an offset", times(23, "200101000000+0100", "490101000000+0100")...)
	dated("fractions of seconds", times(24, "20200101000000.5Z", "20490101000000.5Z")...)
	dated("the 30th of February", times(23, "200230000000Z", "490101000000Z")...)
	// Each of two authorities signed by the other one.
	one := issue(nil, "one", authority(nil))
	two := issue(one, "two", authority(nil))
	again := issue(two, "one", authority(nil).with(one.key))
	leaf := issue(again, "c", client(nil))
	all.client("odd: authorities in a circle", root, leaf, again, two)
	all.client("odd: authorities in a circle, one trusted", one, leaf, again, two)
	pinned := client(nil)
	pinned.old = func(t *tbs) { t.Issuer = asn1.RawValue{FullBytes: []byte{0x30, 0}} }
	all.client("odd: issuer empty", root, issue(root, "c", pinned))
}

// Certificates that etcd judges when it dials a peer at 127.0.0.1.
func servers(all *matrix, root *issued) {
	server := func(more func(template)) wish {
		return wish{change: func(t template) {
			t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
			t.IPAddresses = []net.IP{address("127.0.0.1")}
			if more != nil {
				more(t)
			}
		}}
	}
	for name, wish := range map[string]wish{
		"address":                    server(nil),
		"address in IPv6":            server(func(t template) { t.IPAddresses = []net.IP{net.ParseIP("127.0.0.1").To16()} }),
		"another address":            server(func(t template) { t.IPAddresses = []net.IP{address("127.0.0.2")} }),
		"address as a DNS name":      server(func(t template) { t.IPAddresses, t.DNSNames = nil, []string{"127.0.0.1"} }),
		"address as the common name": server(func(t template) { t.IPAddresses, t.Subject.CommonName = nil, "127.0.0.1" }),
		"no alternative name":        server(func(t template) { t.IPAddresses = nil }),
		"wildcard":                   server(func(t template) { t.IPAddresses, t.DNSNames = nil, []string{"*", "*.0.0.1"} }),
		"usage clientAuth":           server(func(t template) { t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }),
		"usage any":                  server(func(t template) { t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} }),
		"usage none":                 server(func(t template) { t.ExtKeyUsage = nil }),
		"CA:TRUE":                    server(func(t template) { t.IsCA = true }),
		"version 1":                  {old: version1},
		"expired":                    server(func(t template) { t.NotAfter = start.Add(time.Hour) }),
		"not yet valid":              server(func(t template) { t.NotBefore = end.Add(-time.Hour) }),
		"key P-521":                  server(nil).with(curve(elliptic.P521())),
		"key RSA 2048":               server(nil).with(rsaKey(2048)),
		"key RSA 1024":               server(nil).with(rsaKey(1024)),
		"key Ed25519":                server(nil).with(edKey()),
	} {
		all.add("server", name, []*issued{root}, []*issued{issue(root, "s", wish)})
	}
	self := issue(nil, "self", server(func(t template) { t.IsCA = true }))
	all.add("server", "self-signed CA:TRUE, trusted", []*issued{self}, []*issued{self})
	all.add("server", "self-signed, not trusted", []*issued{root}, []*issued{self})
}

// Certificates that etcd is started with.
func shown(all *matrix, root *issued) {
	for name, wish := range map[string]wish{
		"version 3": client(nil), "version 1": {old: version1}, "CA:TRUE": authority(nil),
		"key RSA 2048": client(nil).with(rsaKey(2048)), "key RSA 1024": client(nil).with(rsaKey(1024)),
		"key P-384": client(nil).with(curve(elliptic.P384())), "key P-521": client(nil).with(curve(elliptic.P521())),
		"key Ed25519": client(nil).with(edKey()),
		"expired":     client(func(t template) { t.NotAfter = start.Add(time.Hour) }),
	} {
		all.add("shown", name, nil, []*issued{issue(root, "s", wish)})
	}
	good := issue(root, "s", client(nil))
	all.add("shown", "the key of another one", nil, []*issued{{good.der, p256()}})
}

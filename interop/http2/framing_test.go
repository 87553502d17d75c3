package http2

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"kv-server/interop/internal/process"
)

// Requests of one message whose framing is odd, or whose fields are, and what real etcd and the server make of them.
// kv-server answers a serializable range of one key while it looks at the request, and others later: both kinds are asked
// for, and each request comes in one piece, in two, and with its end apart.
func TestOddCalls(t *testing.T) {
	etcd, err := filepath.Abs("../bin/etcd")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(etcd); err != nil {
		t.Skipf("left out: no %s; run interop/build.sh", etcd)
	}
	servers := map[string]string{}
	for name, binary := range map[string]string{"etcd": etcd, "kv-server": serverBinary(t)} {
		members, err := process.Start(binary, t.TempDir(), 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(members[0].Kill)
		servers[name] = strings.TrimPrefix(members[0].ClientURL, "http://")
		put := marshal(t, &etcdserverpb.PutRequest{Key: []byte("a"), Value: []byte("value")})
		if got, err := call(servers[name], "/etcdserverpb.KV/Put", nil, framed(put), whole); err != nil || !strings.Contains(got, "grpc-status: 0") {
			t.Fatalf("%s: put: %q, %v", name, got, err)
		}
	}
	serializable := marshal(t, &etcdserverpb.RangeRequest{Key: []byte("a"), Serializable: true})
	linearizable := marshal(t, &etcdserverpb.RangeRequest{Key: []byte("a")})
	for _, message := range [][]byte{serializable, linearizable} {
		for _, odd := range oddCalls(message) {
			for _, way := range []way{whole, inParts, endApart} {
				name := fmt.Sprintf("%s, %d bytes, %s", odd.name, len(message), way)
				got, want := "", ""
				if want, err = call(servers["etcd"], "/etcdserverpb.KV/Range", odd.fields, odd.body, way); err != nil {
					t.Fatalf("%s: etcd: %v", name, err)
				}
				if got, err = call(servers["kv-server"], "/etcdserverpb.KV/Range", odd.fields, odd.body, way); err != nil {
					t.Fatalf("%s: kv-server: %v", name, err)
				}
				if got != want {
					t.Errorf("%s:\n got %s\nwant %s", name, got, want)
				}
			}
		}
	}
}

type odd struct {
	name   string
	fields []string
	body   []byte
}

func oddCalls(message []byte) []odd {
	announced := func(length uint32) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{0}, length), message...)
	}
	length := uint32(len(message))
	compressed := framed(message)
	compressed[0] = 1
	unknown := framed(message)
	unknown[0] = 2
	plain := framed(message)
	return []odd{
		{"plain", nil, plain},
		{"no message", nil, nil},
		{"a part of a prefix", nil, []byte{0, 0, 0}},
		{"an empty message", nil, framed(nil)},
		{"no protobuf", nil, framed([]byte{255, 255, 255})},
		{"a message that ends early", nil, framed(message[:len(message)-1])},
		{"a field that is not known", nil, framed(slices.Concat(message, []byte{0xfa, 7, 1, 7}))},
		{"a length above the bytes", nil, announced(length + 1)},
		{"a length below the bytes", nil, announced(length - 1)},
		{"a length above the limit", nil, announced(64 << 20)},
		{"two messages", nil, slices.Concat(plain, plain)},
		{"a byte after the message", nil, slices.Concat(plain, []byte{0})},
		{"a compressed message", nil, compressed},
		{"a flag that is none", nil, unknown},
		{"a timeout of 0", []string{"grpc-timeout", "0n"}, plain},
		{"a long timeout", []string{"grpc-timeout", "1H"}, plain},
		{"a timeout without a unit", []string{"grpc-timeout", "1"}, plain},
		{"a timeout below 0", []string{"grpc-timeout", "-1S"}, plain},
		{"a leader", []string{"hasleader", "true"}, plain},
		{"identity", []string{"grpc-encoding", "identity"}, plain},
		{"an empty authority", []string{":authority", ""}, plain},
		{"a token without users", []string{"token", "nonsense.1"}, plain},
	}
}

func marshal(t *testing.T, message proto.Message) []byte {
	t.Helper()
	bytes, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

func framed(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// way is how a request arrives.
type way string

const (
	whole    way = "in one piece"
	inParts  way = "in two pieces"
	endApart way = "with its end apart"
)

// call makes one call on a connection of its own, and describes what came.
func call(address, path string, more []string, body []byte, way way) (string, error) {
	connection, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	var block, output strings.Builder
	encoder := hpack.NewEncoder(&block)
	fields := []string{":method", "POST", ":scheme", "http", ":path", path}
	if len(more) == 0 || more[0] != ":authority" {
		fields = append(fields, ":authority", "a")
	}
	fields = append(fields, more...)
	fields = append(fields, "content-type", "application/grpc", "te", "trailers")
	for pair := range slices.Chunk(fields, 2) {
		if err := encoder.WriteField(hpack.HeaderField{Name: pair[0], Value: pair[1]}); err != nil {
			return "", err
		}
	}
	output.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&output, connection)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	send := func() error {
		_, err := io.WriteString(connection, output.String())
		output.Reset()
		return err
	}
	pause := func() error {
		if err := send(); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond) // Only makes it likely that the server has seen the first part.
		return nil
	}
	steps := []func() error{
		func() error { return framer.WriteSettings() },
		func() error {
			return framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(block.String()), EndHeaders: true})
		},
	}
	switch way {
	case whole:
		steps = append(steps, func() error { return framer.WriteData(1, true, body) })
	case inParts:
		steps = append(steps, pause, func() error { return framer.WriteData(1, true, body) })
	case endApart:
		steps = append(steps, func() error { return framer.WriteData(1, false, body) }, pause,
			func() error { return framer.WriteData(1, true, nil) })
	}
	for _, step := range append(steps, send) {
		if err := step(); err != nil {
			return "", err
		}
	}
	return describe(framer)
}

// describe reads to the end of the stream.
func describe(framer *http2.Framer) (string, error) {
	var seen []string
	var data []byte
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return "", fmt.Errorf("after %q: %w", seen, err)
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			var fields []string
			for _, field := range frame.Fields {
				// An empty message means nothing, and etcd sends some words as they are that others escape. The status of
				// HTTP counts for nothing where there is one of gRPC.
				text, err := url.PathUnescape(field.Value)
				if err != nil {
					return "", err
				}
				text = strings.ReplaceAll(text, "\u00a0", " ") // Go's protobuf puts some of them, or none, into its errors.
				if field.Name != ":status" && (field.Name != "grpc-message" || text != "") {
					fields = append(fields, field.Name+": "+text)
				}
			}
			slices.Sort(fields)
			if len(data) > 0 {
				seen = append(seen, message(data))
				data = nil
			}
			seen = append(seen, strings.Join(fields, ", "))
			if frame.StreamEnded() {
				return strings.Join(seen, "; "), nil
			}
		case *http2.DataFrame:
			data = append(data, frame.Data()...)
		case *http2.RSTStreamFrame:
			return strings.Join(append(seen, "reset: "+frame.ErrCode.String()), "; "), nil
		case *http2.GoAwayFrame:
			return strings.Join(append(seen, "goaway: "+frame.ErrCode.String()), "; "), nil
		}
	}
}

// message is what is answered, without the header.
func message(data []byte) string {
	var response etcdserverpb.RangeResponse
	if len(data) < 5 || proto.Unmarshal(data[5:], &response) != nil {
		return fmt.Sprintf("%x", data)
	}
	response.Header = nil
	return fmt.Sprintf("%x %v", data[0], &response)
}

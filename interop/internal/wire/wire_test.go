package wire

import (
	"bytes"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

func encode(t *testing.T, message proto.Message) []byte {
	t.Helper()
	encoded, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

func TestMaskKeepsThePresenceOfAFieldButNotItsValue(t *testing.T) {
	answer := func(id uint64) []byte {
		return Mask(encode(t, &pb.PutResponse{Header: &pb.ResponseHeader{ClusterId: id, Revision: 7}}),
			Varying("/etcdserverpb.KV/Put"))
	}
	if !bytes.Equal(answer(5), answer(1<<60)) {
		t.Error("two cluster ids look different")
	}
	if bytes.Equal(answer(5), answer(0)) {
		t.Error("a missing cluster id looks like one that is there")
	}
}

func TestMaskLeavesNestedHeadersAlone(t *testing.T) {
	nested := &pb.TxnResponse{Responses: []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponsePut{
		ResponsePut: &pb.PutResponse{Header: &pb.ResponseHeader{ClusterId: 9}},
	}}}}
	encoded := encode(t, nested)
	if !bytes.Equal(Mask(encoded, Varying("/etcdserverpb.KV/Txn")), encoded) {
		t.Error("the header of an operation was masked")
	}
}

func TestMaskReachesIntoLists(t *testing.T) {
	masked := Mask(encode(t, &pb.MemberListResponse{Members: []*pb.Member{{ID: 77, Name: "m", PeerURLs: []string{"http://x"}}}}),
		Varying("/etcdserverpb.Cluster/MemberList"))
	var got pb.MemberListResponse
	if err := proto.Unmarshal(masked, &got); err != nil {
		t.Fatal(err)
	}
	if m := got.Members[0]; m.ID != 1 || m.Name != "m" || m.PeerURLs[0] != "*" {
		t.Errorf("%v", m)
	}
}

func TestMaskLeavesWhatIsNoMessage(t *testing.T) {
	if got := Mask([]byte("\xff\xff"), Varying("")); string(got) != "\xff\xff" {
		t.Errorf("%q", got)
	}
}

func TestPackGivesALongRunItsOwnPiece(t *testing.T) {
	for packed, plain := range map[string]string{
		"":                  "",
		"YWJj":              "abc",
		"YQ==|120*300|Yg==": "a" + strings.Repeat("x", 300) + "b",
		"120*300|121*256":   strings.Repeat("x", 300) + strings.Repeat("y", 256),
	} {
		if got := Pack([]byte(plain)); got != packed {
			t.Errorf("%q: %s", plain, got)
		}
	}
}

func TestShowIsForReaders(t *testing.T) {
	body := encode(t, &pb.RangeRequest{Key: []byte("a\x00\xff"), Limit: 2, SortOrder: pb.RangeRequest_DESCEND, SortTarget: 9})
	want := "{\"key\":\"a\\u0000ÿ\",\"limit\":2,\"sort_order\":\"DESCEND\",\"sort_target\":9}"
	if got := string(Show(&pb.RangeRequest{}, body)); got != want {
		t.Errorf("%s", got)
	}
	if got := string(Show(&pb.RangeRequest{}, []byte("\n\xffa"))); got != "\"\\nÿa\"" {
		t.Errorf("no message: %s", got)
	}
}

func TestATimeThatIsLeftIsMaskedOnlyCloseBelowTheWhole(t *testing.T) {
	for left, want := range map[int64]int64{60: 60, 50: 60, 49: 49, 61: 61, -1: -1} {
		masked := Mask(encode(t, &pb.LeaseTimeToLiveResponse{TTL: left, GrantedTTL: 60}),
			Varying("/etcdserverpb.Lease/LeaseTimeToLive"))
		var got pb.LeaseTimeToLiveResponse
		if err := proto.Unmarshal(masked, &got); err != nil || got.TTL != want {
			t.Errorf("%d: %v %v", left, &got, err)
		}
	}
}

func TestKeysOfALeaseAreComparedInAnyOrder(t *testing.T) {
	masked := func(keys ...string) []byte {
		message := &pb.LeaseTimeToLiveResponse{ID: 1}
		for _, key := range keys {
			message.Keys = append(message.Keys, []byte(key))
		}
		return Mask(encode(t, message), Varying("/etcdserverpb.Lease/LeaseTimeToLive"))
	}
	if !bytes.Equal(masked("a", "b"), masked("b", "a")) || bytes.Equal(masked("a", "b"), masked("a", "c")) {
		t.Error("keys are compared as a list")
	}
}

func TestAFieldIsFoundAndReplacedInsideMessages(t *testing.T) {
	message := encode(t, &pb.PutResponse{Header: &pb.ResponseHeader{Revision: 300}})
	if got := First(message, "1.3"); !bytes.Equal(got, protowire.AppendVarint(nil, 300)) {
		t.Errorf("%q", got)
	}
	replaced := Replace(message, "1.3", func([]byte, protowire.Type) []byte { return []byte{5} })
	if !bytes.Equal(replaced, encode(t, &pb.PutResponse{Header: &pb.ResponseHeader{Revision: 5}})) {
		t.Errorf("%q", replaced)
	}
	if First(message, "2") != nil || !bytes.Equal(Replace([]byte("\xff"), "1", nil), []byte("\xff")) {
		t.Error("what is not there was found")
	}
}

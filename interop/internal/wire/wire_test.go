package wire

import (
	"bytes"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
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

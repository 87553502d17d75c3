// Package wire handles messages as they stand on the wire.
//
//   - Varying fields differ from run to run in etcd itself; they are masked, not dropped: that a field is there is compared too.
//   - Everything else stays byte for byte as it came, so a recording also fixes the order and the form of fields.
//
// Knows nothing of scripts, and no message type except to show it to a person.
package wire

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field is one field, by its numbers from the outermost message inwards, that etcd answers differently each time.
type Field struct {
	Path string `json:"path"`
	Name string `json:"name"`
	Why  string `json:"why"`
	// CountsDownFrom is the path of a field beside it: a number at most countedMax below that one is masked by it.
	CountsDownFrom string `json:"counts_down_from,omitempty"`
	// Unordered: the elements of the list are sorted, and kept as they are.
	Unordered bool `json:"unordered,omitempty"`
}

// countedMax is how many seconds a lease may have lost between two steps of a script, on a busy machine.
const countedMax = 10

const (
	whyIdentity = "ids are hashes of the member's own addresses"
	whyTerm     = "elections are counted, and a start may need more than one"
)

func header(prefix string) []Field {
	return []Field{
		{Path: prefix + "1.1", Name: "header.cluster_id", Why: whyIdentity},
		{Path: prefix + "1.2", Name: "header.member_id", Why: whyIdentity},
		{Path: prefix + "1.4", Name: "header.raft_term", Why: whyTerm},
	}
}

// Varying lists the fields of the answers of one method that are masked.
func Varying(path string) []Field {
	switch path {
	case "/etcdserverpb.KV/RangeStream":
		return header("1.")
	case "/etcdserverpb.Maintenance/Status":
		return append(header(""),
			Field{Path: "3", Name: "dbSize", Why: "depends on the form of the store's files"},
			Field{Path: "9", Name: "dbSizeInUse", Why: "depends on the form of the store's files"},
			Field{Path: "8", Name: "errors", Why: "protobuf's text form is spaced at random, by the build"},
			Field{Path: "4", Name: "leader", Why: whyIdentity},
			Field{Path: "5", Name: "raftIndex", Why: "counts entries of each server's own making too"},
			Field{Path: "7", Name: "raftAppliedIndex", Why: "counts entries of each server's own making too"},
			Field{Path: "6", Name: "raftTerm", Why: whyTerm})
	case "/etcdserverpb.Cluster/MemberList":
		return append(header(""),
			Field{Path: "2.1", Name: "members.ID", Why: whyIdentity},
			Field{Path: "2.3", Name: "members.peerURLs", Why: "free ports are taken"},
			Field{Path: "2.4", Name: "members.clientURLs", Why: "free ports are taken"})
	case "/etcdserverpb.Cluster/MemberAdd":
		return append(header(""),
			Field{Path: "2.1", Name: "member.ID", Why: whyIdentity},
			Field{Path: "3", Name: "members", Why: "ordered by their ids; free ports are taken"})
	case "/etcdserverpb.Lease/LeaseTimeToLive":
		return append(header(""),
			Field{Path: "3", Name: "TTL", Why: "time passes", CountsDownFrom: "4"},
			Field{Path: "5", Name: "keys", Why: "they come in the order of a hash map", Unordered: true})
	case "/grpc.health.v1.Health/Check":
		return []Field{}
	default:
		return header("")
	}
}

// Mask replaces each field on the given paths: a number other than 0 by 1, bytes other than none by a star.
// A message that cannot be walked is returned as it is.
func Mask(message []byte, fields []Field) []byte {
	tree := node{}
	for _, field := range fields {
		switch {
		case field.CountsDownFrom != "":
			message = maskCounted(message, field)
		case field.Unordered:
			message = sorted(message, field.Path)
		default:
			tree.add(strings.Split(field.Path, "."))
		}
	}
	masked, err := tree.mask(message)
	if err != nil {
		return message
	}
	return masked
}

// node is a tree of field numbers; a node without children is masked.
type node map[protowire.Number]node

func (n node) add(path []string) {
	if len(path) == 0 {
		return
	}
	number, err := strconv.Atoi(path[0])
	if err != nil {
		panic(fmt.Sprintf("field path %v: %v", path, err))
	}
	child := n[protowire.Number(number)]
	if child == nil {
		child = node{}
		n[protowire.Number(number)] = child
	}
	child.add(path[1:])
}

func (n node) mask(message []byte) ([]byte, error) {
	var out []byte
	for len(message) > 0 {
		number, kind, tagBytes := protowire.ConsumeTag(message)
		if tagBytes < 0 {
			return nil, protowire.ParseError(tagBytes)
		}
		valueBytes := protowire.ConsumeFieldValue(number, kind, message[tagBytes:])
		if valueBytes < 0 {
			return nil, protowire.ParseError(valueBytes)
		}
		value := message[tagBytes : tagBytes+valueBytes]
		child, listed := n[number]
		if !listed {
			out = append(out, message[:tagBytes+valueBytes]...)
		} else {
			var err error
			out = append(out, message[:tagBytes]...)
			if out, err = child.maskValue(out, kind, value); err != nil {
				return nil, err
			}
		}
		message = message[tagBytes+valueBytes:]
	}
	return out, nil
}

func (n node) maskValue(out []byte, kind protowire.Type, value []byte) ([]byte, error) {
	switch kind {
	case protowire.VarintType:
		if len(n) > 0 {
			return append(out, value...), nil // the path leads deeper: this is not the field that it means
		}
		if number, _ := protowire.ConsumeVarint(value); number != 0 {
			return append(out, 1), nil
		}
		return append(out, value...), nil
	case protowire.BytesType:
		inner, _ := protowire.ConsumeBytes(value)
		if len(n) > 0 {
			masked, err := n.mask(inner)
			return protowire.AppendBytes(out, masked), err
		}
		if len(inner) > 0 {
			inner = []byte("*")
		}
		return protowire.AppendBytes(out, inner), nil
	default:
		return append(out, value...), nil
	}
}

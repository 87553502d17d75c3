// Package script reads the request scripts of interop/cases.
//
// A script is a story that a person can read. Each file is told to one fresh, empty store, so that its revisions
// start at 1 and are the same for every server that hears it.
//
//	# Text at the head of the file says what the script is about.
//
//	# A comment right above a step says why the step is there.
//	Put key:"a" value:"1"
//	Range key:"a" range_end:"z"
//	  limit:2                                    (an indented line continues the step)
//	Txn [[129 success:{request_put:{key:"k#"}}]]  (text repeated 129 times, # counting 001, 002, ...)
//	Raw /etcdserverpb.KV/Range "\n\x01a"          (a path and a body that no message type vouches for)
//
// The request of a step is protobuf's text form. A repetition may stand anywhere, also inside a quoted string.
//
// Knows nothing of connections or recordings.
package script

import (
	"fmt"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// Script is one file: its steps run in order, each one after the answer of the step before.
type Script struct {
	Name  string
	About string
	Steps []Step
}

// Step is one call.
type Step struct {
	Why    string // the comment above the step, may be empty
	Line   string // the step as it stands in the file, on one line
	Method Method
	Body   []byte // the request as it goes over the wire
}

// Method is what a step calls. New messages are nil where the path is not one that we know.
type Method struct {
	Path        string
	Streams     bool
	NewRequest  func() proto.Message
	NewResponse func() proto.Message
}

func unary[Q, R any, PQ message[Q], PR message[R]](path string) Method {
	return Method{
		Path:        path,
		NewRequest:  func() proto.Message { return PQ(new(Q)) },
		NewResponse: func() proto.Message { return PR(new(R)) },
	}
}

type message[T any] interface {
	*T
	proto.Message
}

func streaming(m Method) Method {
	m.Streams = true
	return m
}

// methods maps the first word of a step to what it calls.
var methods = map[string]Method{
	"Range":       unary[pb.RangeRequest, pb.RangeResponse]("/etcdserverpb.KV/Range"),
	"RangeStream": streaming(unary[pb.RangeRequest, pb.RangeStreamResponse]("/etcdserverpb.KV/RangeStream")),
	"Put":         unary[pb.PutRequest, pb.PutResponse]("/etcdserverpb.KV/Put"),
	"DeleteRange": unary[pb.DeleteRangeRequest, pb.DeleteRangeResponse]("/etcdserverpb.KV/DeleteRange"),
	"Txn":         unary[pb.TxnRequest, pb.TxnResponse]("/etcdserverpb.KV/Txn"),
	"Compact":     unary[pb.CompactionRequest, pb.CompactionResponse]("/etcdserverpb.KV/Compact"),
	"HashKV":      unary[pb.HashKVRequest, pb.HashKVResponse]("/etcdserverpb.Maintenance/HashKV"),
	"Alarm":       unary[pb.AlarmRequest, pb.AlarmResponse]("/etcdserverpb.Maintenance/Alarm"),
	"Status":      unary[pb.StatusRequest, pb.StatusResponse]("/etcdserverpb.Maintenance/Status"),
	"MemberList":  unary[pb.MemberListRequest, pb.MemberListResponse]("/etcdserverpb.Cluster/MemberList"),
	"LeaseGrant":  unary[pb.LeaseGrantRequest, pb.LeaseGrantResponse]("/etcdserverpb.Lease/LeaseGrant"),
	"LeaseRevoke": unary[pb.LeaseRevokeRequest, pb.LeaseRevokeResponse]("/etcdserverpb.Lease/LeaseRevoke"),
	"HealthCheck": unary[health.HealthCheckRequest, health.HealthCheckResponse]("/grpc.health.v1.Health/Check"),
}

// Parse reads one file. An error names the line on which the step begins.
func Parse(name, text string) (*Script, error) {
	s := &Script{Name: name}
	var comment []string
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimRight(lines[i], " \t")
		switch {
		case line == "":
			// A comment that a blank line follows belongs to the file when nothing came before it.
			if s.About == "" && len(s.Steps) == 0 {
				s.About = strings.Join(comment, " ")
			}
			comment = nil
		case strings.HasPrefix(line, "#"):
			comment = append(comment, strings.TrimSpace(line[1:]))
		case line[0] == ' ' || line[0] == '\t':
			return nil, fmt.Errorf("%s:%d: a continuation without a step", name, i+1)
		default:
			begin := i
			for i+1 < len(lines) && strings.HasPrefix(lines[i+1], " ") {
				i++
				line += " " + strings.TrimSpace(lines[i])
			}
			step, err := parseStep(line)
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", name, begin+1, err)
			}
			step.Why = strings.Join(comment, " ")
			comment = nil
			s.Steps = append(s.Steps, step)
		}
	}
	if len(s.Steps) == 0 {
		return nil, fmt.Errorf("%s: no step", name)
	}
	return s, nil
}

func parseStep(line string) (Step, error) {
	verb, rest, _ := strings.Cut(line, " ")
	step := Step{Line: line}
	text, err := expand(rest)
	if err != nil {
		return step, err
	}
	if verb == "Raw" {
		step.Method, step.Body, err = parseRaw(text)
		return step, err
	}
	method, known := methods[verb]
	if !known {
		return step, fmt.Errorf("no method is called %q", verb)
	}
	step.Method = method
	request := method.NewRequest()
	if err := prototext.Unmarshal([]byte(text), request); err != nil {
		return step, err
	}
	step.Body, err = proto.MarshalOptions{Deterministic: true}.Marshal(request)
	return step, err
}

// parseRaw reads `/path "quoted bytes"`. A path that we know keeps its types, so that the answer can be shown.
func parseRaw(text string) (Method, []byte, error) {
	path, quoted, _ := strings.Cut(strings.TrimSpace(text), " ")
	body, err := strconv.Unquote(strings.TrimSpace(quoted))
	if err != nil {
		return Method{}, nil, fmt.Errorf("body of a raw step: %w", err)
	}
	for _, method := range methods {
		if method.Path == path {
			return method, []byte(body), nil
		}
	}
	return Method{Path: path}, []byte(body), nil
}

// repetitions bounds what one line can grow to: room for a value beyond every limit that a server has.
const repetitions = 4 << 20

// expand replaces each [[N text]] by N copies of text. Repetitions do not nest.
func expand(text string) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "[[")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		inner, after, closed := strings.Cut(rest, "]]")
		count, body, spaced := strings.Cut(inner, " ")
		times, err := strconv.Atoi(count)
		if !closed || !spaced || err != nil || times < 0 || times > repetitions {
			return "", fmt.Errorf("bad repetition [[%s]]", inner)
		}
		if strings.Contains(body, "#") {
			for n := 1; n <= times; n++ {
				out.WriteString(strings.ReplaceAll(body, "#", fmt.Sprintf("%03d", n)) + " ")
			}
		} else {
			out.WriteString(strings.Repeat(body, times))
		}
		text = after
	}
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"kv-server/interop/internal/process"
	"kv-server/interop/internal/script"
	"kv-server/interop/internal/session"
	"kv-server/interop/internal/wire"
)

const callTimeout = 10 * time.Second

// How often a failing round is run again to make it shorter: each run starts two servers, about a second.
const shorteningsMax = 150

// pair is the two programs that are compared.
type pair struct{ etcd, server string }

// difference is a step and how it was answered.
type difference struct {
	step         int
	etcd, server string
}

// firstDifference tells the steps to two fresh servers, up to the first step that they answer differently.
func (p pair) firstDifference(steps []step) (*difference, error) {
	dir, err := os.MkdirTemp("", "differ-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var connections [2]*grpc.ClientConn
	for i, binary := range []string{p.etcd, p.server} {
		below := fmt.Sprintf("%s/%d", dir, i)
		if err := os.Mkdir(below, 0o700); err != nil {
			return nil, err
		}
		members, err := process.Start(binary, below, 1)
		if err != nil {
			return nil, err
		}
		defer members[0].Kill()
		if connections[i], err = session.Dial(members[0]); err != nil {
			return nil, err
		}
		defer connections[i].Close()
	}
	for i, step := range steps {
		called, err := step.called()
		if err != nil {
			return nil, err
		}
		theirs := make(chan answer, 1)
		go func() { theirs <- ask(connections[0], called) }()
		ours := ask(connections[1], called)
		a, b := (<-theirs).canonical(step), ours.canonical(step)
		if !a.equal(b) {
			return &difference{i, a.show(called), b.show(called)}, nil
		}
		if a.code == codes.Unavailable || a.code == codes.DeadlineExceeded {
			return nil, fmt.Errorf("step %d, %s: no answer from etcd: %s", i+1, step.line(), a.message)
		}
	}
	return nil, nil
}

// shorten leaves out ever smaller runs of steps while the last one is still answered differently.
func (p pair) shorten(steps []step, last *difference) ([]step, *difference) {
	runs := 0
	for size := len(steps) / 2; size > 0; size /= 2 {
		for at := 0; at+size < len(steps) && runs < shorteningsMax; {
			shorter := slices.Concat(steps[:at], steps[at+size:])
			runs++
			if found, err := p.firstDifference(shorter); err == nil && found != nil {
				steps, last = shorter[:found.step+1], found
			} else {
				at += size
			}
		}
	}
	return steps, last
}

// answer is how a call ended.
type answer struct {
	code    codes.Code
	message string
	bodies  [][]byte
}

func ask(connection *grpc.ClientConn, called script.Step) answer {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	bodies, err := session.Exchange(ctx, connection, called)
	for i := range bodies {
		bodies[i] = wire.Mask(bodies[i], wire.Varying(called.Method.Path))
	}
	how := status.Convert(err)
	return answer{how.Code(), strings.ReplaceAll(how.Message(), "\u00a0", " "), bodies}
}

func (a answer) equal(b answer) bool {
	return a.code == b.code && a.message == b.message && slices.EqualFunc(a.bodies, b.bodies, bytes.Equal)
}

func (a answer) show(called script.Step) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%v %s", a.code, a.message)
	for _, body := range a.bodies {
		fmt.Fprintf(&out, " %s", wire.Show(called.Method.NewResponse(), body))
	}
	return out.String()
}

// canonical orders equal elements of sorted ranges by key: etcd's sort is not stable. Everything else stays as it came.
func (a answer) canonical(step step) answer {
	sorted := false
	var canonical proto.Message
	switch request := step.request.(type) {
	case *pb.RangeRequest:
		response := new(pb.RangeResponse)
		if step.verb == "Range" && len(a.bodies) == 1 && proto.Unmarshal(a.bodies[0], response) == nil {
			sorted, canonical = orderEquals(request, response), response
		}
	case *pb.TxnRequest:
		response := new(pb.TxnResponse)
		if len(a.bodies) == 1 && proto.Unmarshal(a.bodies[0], response) == nil {
			sorted, canonical = orderEqualsInTxn(request, response), response
		}
	}
	if !sorted {
		return a
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(canonical)
	if err != nil {
		panic(err) // it was unmarshalled just now
	}
	return answer{a.code, a.message, [][]byte{body}}
}

func orderEqualsInTxn(request *pb.TxnRequest, response *pb.TxnResponse) bool {
	ops := request.Failure
	if response.Succeeded {
		ops = request.Success
	}
	sorted := false
	for i, op := range ops {
		if i >= len(response.Responses) {
			break
		}
		if r := op.GetRequestRange(); r != nil {
			sorted = orderEquals(r, response.Responses[i].GetResponseRange()) || sorted
		}
		if t := op.GetRequestTxn(); t != nil {
			sorted = orderEqualsInTxn(t, response.Responses[i].GetResponseTxn()) || sorted
		}
	}
	return sorted
}

// orderEquals sorts each run of elements that are equal in what the request sorts by.
func orderEquals(request *pb.RangeRequest, response *pb.RangeResponse) bool {
	if request.SortTarget == pb.RangeRequest_KEY || response == nil {
		return false
	}
	by := func(kv *mvccpb.KeyValue) string {
		switch request.SortTarget {
		case pb.RangeRequest_VERSION:
			return fmt.Sprint(kv.Version)
		case pb.RangeRequest_CREATE:
			return fmt.Sprint(kv.CreateRevision)
		case pb.RangeRequest_MOD:
			return fmt.Sprint(kv.ModRevision)
		default:
			return string(kv.Value)
		}
	}
	if request.KeysOnly && request.SortTarget == pb.RangeRequest_VALUE {
		return false // the values that were sorted by are not shown; the generator leaves this out
	}
	kvs := response.Kvs
	for from := 0; from < len(kvs); {
		to := from + 1
		for to < len(kvs) && by(kvs[to]) == by(kvs[from]) {
			to++
		}
		slices.SortFunc(kvs[from:to], func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
		from = to
	}
	return true
}

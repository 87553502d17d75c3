package main

import (
	"math/rand/v2"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"kv-server/interop/internal/script"
)

// step is one request.
type step struct {
	verb    string
	request proto.Message
}

// line writes the step as the scripts of interop/cases have it.
func (s step) line() string {
	return s.verb + " " + prototext.MarshalOptions{}.Format(s.request)
}

// called makes the call, by way of its line: so a printed script is what was asked.
func (s step) called() (script.Step, error) {
	parsed, err := script.Parse("differ", strings.TrimRight(s.line(), " ")+"\n")
	if err != nil {
		return script.Step{}, err
	}
	return parsed.Steps[0], nil
}

// world is what the generator knows of the store: about how far its revisions go.
type world struct {
	*rand.Rand
	revision int64
}

// generate makes the requests of a round.
func generate(seed uint64, count int) []step {
	w := &world{rand.New(rand.NewPCG(seed, 0)), 1}
	steps := make([]step, 0, count)
	for range count {
		steps = append(steps, w.step())
	}
	return steps
}

func (w *world) step() step {
	switch n := w.IntN(100); {
	case n < 30:
		w.revision++
		return step{"Put", w.put()}
	case n < 42:
		w.revision++
		return step{"DeleteRange", w.deleteRange()}
	case n < 62:
		return step{"Range", w.rangeRequest()}
	case n < 66:
		return step{"RangeStream", w.streamRequest()}
	case n < 88:
		w.revision++
		return step{"Txn", w.anyTxn()}
	case n < 96:
		return step{"HashKV", &pb.HashKVRequest{Revision: w.anyRevision()}}
	default:
		// Physical: etcd's remembered hashes of compactions that overlap depend on time.
		return step{"Compact", &pb.CompactionRequest{Revision: w.anyRevision(), Physical: true}}
	}
}

func pick[T any](w *world, of ...T) T { return of[w.IntN(len(of))] }

func (w *world) chance(percent int) bool { return w.IntN(100) < percent }

func (w *world) key() []byte {
	if w.chance(2) {
		return nil
	}
	return []byte(pick(w, "a", "b", "c", "d", "e", "aa", "ab", "b\x00", "\x00", "\xff", "k1", "k2", "k3"))
}

func (w *world) end() []byte {
	return []byte(pick(w, "", "", "b", "c", "e", "k3", "l", "\x00", "a", "\xff\xff"))
}

func (w *world) value() []byte {
	return []byte(strings.Repeat(pick(w, "", "1", "2", "x", "\x00"), pick(w, 1, 1, 1, 5, 300)))
}

// anyRevision is about one that exists; sometimes compacted, to come, or none.
func (w *world) anyRevision() int64 {
	if w.chance(25) {
		return pick[int64](w, 0, 0, -1, 1, w.revision+5)
	}
	return max(0, w.revision-int64(w.IntN(30)))
}

func (w *world) put() *pb.PutRequest {
	put := &pb.PutRequest{Key: w.key(), Value: w.value(), PrevKv: w.chance(30)}
	if w.chance(10) {
		put.IgnoreValue = true
		if w.chance(80) {
			put.Value = nil
		}
	}
	put.IgnoreLease = w.chance(8)
	if w.chance(3) {
		put.Lease = 7
	}
	return put
}

func (w *world) deleteRange() *pb.DeleteRangeRequest {
	return &pb.DeleteRangeRequest{Key: w.key(), RangeEnd: w.end(), PrevKv: w.chance(40)}
}

func (w *world) rangeRequest() *pb.RangeRequest {
	r := &pb.RangeRequest{
		Key: w.key(), RangeEnd: w.end(), Serializable: w.chance(20),
		KeysOnly: w.chance(20), CountOnly: w.chance(10),
	}
	if w.chance(30) {
		r.Revision = w.anyRevision()
	}
	if w.chance(40) {
		r.SortOrder = pb.RangeRequest_SortOrder(pick[int32](w, 0, 1, 2, 2, 1, 9))
		r.SortTarget = pb.RangeRequest_SortTarget(pick[int32](w, 0, 0, 1, 2, 3, 4, 9))
	}
	// Among equals etcd's order is its own, and so is what a limit leaves of them.
	if r.SortTarget == pb.RangeRequest_KEY && w.chance(40) {
		r.Limit = pick[int64](w, 1, 2, 3, 5, 100, -1)
	}
	if r.SortTarget == pb.RangeRequest_VALUE {
		r.KeysOnly = false
	}
	if w.chance(15) {
		r.MinModRevision, r.MaxModRevision = w.anyRevision(), w.anyRevision()
	}
	if w.chance(10) {
		r.MinCreateRevision, r.MaxCreateRevision = w.anyRevision(), w.anyRevision()
	}
	return r
}

// streamRequest leaves out a target other than the key without an order: etcd repeats keys then.
func (w *world) streamRequest() *pb.RangeRequest {
	r := w.rangeRequest()
	if r.SortOrder == pb.RangeRequest_NONE {
		r.SortTarget = pb.RangeRequest_KEY
	}
	return r
}

// anyTxn leaves out transactions that delete to the end of the keys and put as well: etcd loses such a key at the next
// compaction, and its hash with it.
func (w *world) anyTxn() *pb.TxnRequest {
	if w.chance(2) {
		return w.deepTxn(pick(w, 49, 50, 100, 126, 127, 128, 129, 130))
	}
	for {
		txn := w.txn(pick(w, 0, 0, 0, 1, 2, 4))
		if has := contents(txn); !has.deletesToEnd || !has.puts {
			return txn
		}
	}
}

func (w *world) txn(depth int) *pb.TxnRequest {
	txn := &pb.TxnRequest{}
	for range w.IntN(3) {
		txn.Compare = append(txn.Compare, w.compare())
	}
	for range w.IntN(4) {
		txn.Success = append(txn.Success, w.op(depth))
	}
	for range w.IntN(3) {
		txn.Failure = append(txn.Failure, w.op(depth))
	}
	return txn
}

func (w *world) op(depth int) *pb.RequestOp {
	switch n := w.IntN(100); {
	case n < 1:
		return &pb.RequestOp{}
	case n < 40:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: w.put()}}
	case n < 65:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: w.rangeRequest()}}
	case n < 80 || depth == 0:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: w.deleteRange()}}
	default:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: w.txn(depth - 1)}}
	}
}

func (w *world) compare() *pb.Compare {
	c := &pb.Compare{
		Key: w.key(), Result: pb.Compare_CompareResult(w.IntN(4)), Target: pb.Compare_CompareTarget(w.IntN(5)),
	}
	if w.chance(20) {
		c.RangeEnd = w.end()
	}
	switch w.IntN(6) {
	case 0:
		c.TargetUnion = &pb.Compare_Version{Version: int64(w.IntN(4))}
	case 1:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: w.anyRevision()}
	case 2:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: w.anyRevision()}
	case 3:
		c.TargetUnion = &pb.Compare_Value{Value: w.value()}
	case 4:
		c.TargetUnion = &pb.Compare_Lease{Lease: pick[int64](w, 0, 7)}
	}
	return c
}

// deepTxn is a chain of transactions.
func (w *world) deepTxn(levels int) *pb.TxnRequest {
	txn := &pb.TxnRequest{}
	if w.chance(50) {
		put := &pb.PutRequest{Key: []byte("deep"), Value: w.value()}
		txn.Success = []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: put}}}
	}
	for range levels - 1 {
		op := &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: txn}}
		if w.chance(80) {
			txn = &pb.TxnRequest{Success: []*pb.RequestOp{op}}
		} else {
			txn = &pb.TxnRequest{Failure: []*pb.RequestOp{op}}
		}
	}
	return txn
}

// kinds is what a transaction holds, in any branch.
type kinds struct{ puts, deletesToEnd bool }

func contents(txn *pb.TxnRequest) kinds {
	var has kinds
	for _, ops := range [][]*pb.RequestOp{txn.Success, txn.Failure} {
		for _, op := range ops {
			has.puts = has.puts || op.GetRequestPut() != nil
			if del := op.GetRequestDeleteRange(); del != nil && string(del.RangeEnd) == "\x00" {
				has.deletesToEnd = true
			}
			if child := op.GetRequestTxn(); child != nil {
				inner := contents(child)
				has.puts, has.deletesToEnd = has.puts || inner.puts, has.deletesToEnd || inner.deletesToEnd
			}
		}
	}
	return has
}

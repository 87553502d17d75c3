// Writes the log of a data directory as etcd's write-ahead log, which etcd's robustness suite reads after a run.
//
//	wal KVCTL DIR      what `KVCTL inspect wal --data-dir DIR` shows → DIR/member/wal
//
// An entry here has a batch of commands, one of etcd has one request: each entry here becomes `slots` entries,
// those that are left over empty. So an index means the same in the logs of all members, wherever they begin.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
)

// More than the clients of the suite can have under way.
const slots = 64

type line struct {
	Kind                string
	Index, Term, Commit uint64
	Requests            []request
}

type request struct {
	Request, Key, Value, Target, Result string
	RangeEnd                            string `json:"range_end"`
	Lease, TTL, Revision, Limit, Number int64
	KeysOnly                            bool `json:"keys_only"`
	Leases                              []int64
	Compare, Success, Failure           []request
}

func main() {
	log.SetFlags(0)
	if err := convert(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func convert(program, dir string) error {
	lines, commit, err := read(program, dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "member"), 0o700); err != nil {
		return err
	}
	if err := os.RemoveAll(datadir.ToWALDir(dir)); err != nil {
		return err
	}
	w, err := wal.Create(zap.NewNop(), datadir.ToWALDir(dir), nil)
	if err != nil {
		return err
	}
	defer w.Close()
	term := uint64(0)
	for _, line := range lines {
		var made []*pb.InternalRaftRequest
		for _, request := range line.Requests {
			made = append(made, request.internal()...)
		}
		if len(made) > slots {
			return fmt.Errorf("entry %d has %d requests", line.Index, len(made))
		}
		entries := make([]*raftpb.Entry, slots)
		for i := range entries {
			entries[i] = &raftpb.Entry{Term: &line.Term, Index: proto.Uint64((line.Index-1)*slots + uint64(i) + 1)}
			if i < len(made) {
				if entries[i].Data, err = proto.Marshal(made[i]); err != nil {
					return err
				}
			}
		}
		term = line.Term
		if err := w.Save(nil, entries); err != nil {
			return err
		}
	}
	return w.Save(&raftpb.HardState{Term: &term, Commit: proto.Uint64(commit * slots)}, nil)
}

// The entries that no later one of the same index has replaced, and how far they are committed.
func read(program, dir string) (lines []line, commit uint64, err error) {
	command := exec.Command(program, "inspect", "wal", "--json", "--data-dir", dir)
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, 0, err
	}
	if err := command.Start(); err != nil {
		return nil, 0, err
	}
	scanner := bufio.NewScanner(output)
	scanner.Buffer(nil, 64<<20)
	for scanner.Scan() {
		var line line
		if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", scanner.Text(), err)
		}
		switch line.Kind {
		case "state":
			commit = max(commit, line.Commit)
		case "entry":
			keep := len(lines)
			for keep > 0 && lines[keep-1].Index >= line.Index {
				keep--
			}
			lines = append(lines[:keep], line)
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, 0, err
	}
	return lines, commit, command.Wait()
}

// What etcd writes into its log for it; nothing for what the suite passes over.
func (r request) internal() []*pb.InternalRaftRequest {
	switch r.Request {
	case "put":
		return []*pb.InternalRaftRequest{{Put: r.put()}}
	case "delete_range":
		return []*pb.InternalRaftRequest{{DeleteRange: r.deleteRange()}}
	case "txn":
		txn := &pb.TxnRequest{Success: operations(r.Success), Failure: operations(r.Failure)}
		for _, compare := range r.Compare {
			txn.Compare = append(txn.Compare, compare.compare())
		}
		return []*pb.InternalRaftRequest{{Txn: txn}}
	case "compact":
		return []*pb.InternalRaftRequest{{Compaction: &pb.CompactionRequest{Revision: r.Revision}}}
	case "lease_grant":
		return []*pb.InternalRaftRequest{{LeaseGrant: &pb.LeaseGrantRequest{ID: r.Lease, TTL: r.TTL}}}
	case "lease_revoke", "lease_expire":
		var revoked []*pb.InternalRaftRequest
		for _, lease := range slices.Concat(r.Leases, []int64{r.Lease}) {
			if lease != 0 {
				revoked = append(revoked, &pb.InternalRaftRequest{LeaseRevoke: &pb.LeaseRevokeRequest{ID: lease}})
			}
		}
		return revoked
	}
	return nil
}

func (r request) put() *pb.PutRequest {
	return &pb.PutRequest{Key: bytes(r.Key), Value: bytes(r.Value), Lease: r.Lease}
}

func (r request) deleteRange() *pb.DeleteRangeRequest {
	return &pb.DeleteRangeRequest{Key: bytes(r.Key), RangeEnd: bytes(r.RangeEnd)}
}

func (r request) compare() *pb.Compare {
	compare := &pb.Compare{
		Key:    bytes(r.Key),
		Target: pb.Compare_CompareTarget(pb.Compare_CompareTarget_value[strings.ToUpper(r.Target)]),
		Result: pb.Compare_CompareResult(pb.Compare_CompareResult_value[strings.ToUpper(r.Result)]),
	}
	switch compare.Target {
	case pb.Compare_VERSION:
		compare.TargetUnion = &pb.Compare_Version{Version: r.Number}
	case pb.Compare_MOD:
		compare.TargetUnion = &pb.Compare_ModRevision{ModRevision: r.Number}
	}
	return compare
}

func operations(requests []request) (operations []*pb.RequestOp) {
	for _, r := range requests {
		operation := &pb.RequestOp{}
		switch r.Request {
		case "range":
			operation.Request = &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{
				Key: bytes(r.Key), RangeEnd: bytes(r.RangeEnd), Limit: r.Limit, Revision: r.Revision, KeysOnly: r.KeysOnly,
			}}
		case "put":
			operation.Request = &pb.RequestOp_RequestPut{RequestPut: r.put()}
		case "delete_range":
			operation.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r.deleteRange()}
		}
		operations = append(operations, operation)
	}
	return operations
}

// Of text with the escapes of ASCII.
func bytes(text string) []byte {
	plain, err := strconv.Unquote(`"` + strings.ReplaceAll(text, `\'`, `'`) + `"`)
	if err != nil {
		log.Fatalf("%q: %v", text, err)
	}
	return []byte(plain)
}

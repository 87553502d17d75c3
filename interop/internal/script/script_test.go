package script

import (
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

func parse(t *testing.T, text string) *Script {
	t.Helper()
	s, err := Parse("test", text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCommentsBelongToTheFileOrToTheStepBelow(t *testing.T) {
	s := parse(t, "# about\n# this\n\n# why\nPut key:\"a\"\n\n# lost\n\nRange key:\"a\"\n")
	if s.About != "about this" || s.Steps[0].Why != "why" || s.Steps[1].Why != "" {
		t.Fatalf("%+v", s)
	}
}

func TestAnIndentedLineContinuesTheStep(t *testing.T) {
	s := parse(t, "Range key:\"a\"\n  limit:3\n")
	var request pb.RangeRequest
	if err := proto.Unmarshal(s.Steps[0].Body, &request); err != nil || request.Limit != 3 {
		t.Fatalf("%v %v", &request, err)
	}
}

func TestARepetitionCountsWhereItHasAHash(t *testing.T) {
	for text, want := range map[string]string{
		`a[[3 x]]b`:      "axxxb",
		`[[2 k#]]`:       "k001 k002 ",
		`[[1 a]][[2 b]]`: "abb",
	} {
		if got, err := expand(text); err != nil || got != want {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
}

func TestFlagsAndMetadataAreKept(t *testing.T) {
	s := parse(t, "Flags --a --b=c\nHasLeader Put key:\"a\"\nHasLeader w = Watch\nw close\n")
	if strings.Join(s.Flags, " ") != "--a --b=c" || !s.Steps[0].HasLeader || !s.Steps[1].HasLeader || s.Steps[2].HasLeader {
		t.Fatalf("%+v", s)
	}
}

func TestARawStepSendsExactlyItsBytes(t *testing.T) {
	s := parse(t, `Raw /a.B/C "\x00\xff"`+"\n")
	if string(s.Steps[0].Body) != "\x00\xff" || s.Steps[0].Method.Path != "/a.B/C" {
		t.Fatalf("%+v", s.Steps[0])
	}
}

func TestWhatCannotBeReadNamesItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"Put key:\"a\"\nPet key:\"a\"":  "test.txt:2: no method",
		"\n\nPut [[x y]]":               "test.txt:3: bad repetition",
		"  limit:3":                     "test.txt:1: a continuation",
		"Put key:\"a\"\nFlags --x":      "test.txt:2: flags after a step",
		"w = Watch\nHasLeader w close":  "test.txt:2: metadata on a stream",
		"Raw /a.B/C nothing":            "test.txt:1: body of a raw step",
		"# only talk":                   "test.txt: no step",
		"Repeat none Put key:\"a\"":     "test.txt:1: \"none\" is no number of calls",
		"\nw send progress_request:{}":  "test.txt:2: no method and no stream",
		"w = Pet":                       "test.txt:1: no method is called",
		"w = Watch\nw = Watch":          "test.txt:2: w is open already",
		"Put = Watch":                   "test.txt:1:",
		"w = Watch\nw wave":             "test.txt:2: \"wave\" is nothing",
		"w = Watch\nw expect 0":         "test.txt:2: \"0\" is not a number",
		"w = Watch\nw expect 2 by nose": "test.txt:2: WatchResponse has no field",
		"w = Watch\nw close\nw send":    "test.txt:3: w takes no further request",
		"w = Watch\nw end\nw expect 1":  "test.txt:3: no method and no stream",
		"l = Lock name:\"a\"\nl send":   "test.txt:2: l takes no further request",
		"w = Watch => watch_id:$id":     "test.txt:1: a step without answers",
		"LeaseRevoke ID:$lease":         "test.txt:1: $lease is not bound",
		"LeaseGrant TTL:5 => ID":        "test.txt:1: \"ID\" is not field:$variable",
		"LeaseGrant TTL:5 => no:$x":     "test.txt:1: LeaseGrantResponse has no field",
		"LeaseGrant TTL:5 => header:$x": "test.txt:1: \"header\" is a message",
		"Put key:\"[[9999999 x]]\"":     "bad repetition",
	} {
		if _, err := Parse("test", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestAnActBelongsToTheStreamThatWasOpened(t *testing.T) {
	s := parse(t, "w = Watch create_request:{key:\"a\"}\nw expect 2 by watch_id\nw close\nw silent\nw end\nw = Watch\nw cancel\n")
	var acts []string
	for _, step := range s.Steps {
		acts = append(acts, string(step.Act))
		if step.Stream != "w" || step.Method.Path != "/etcdserverpb.Watch/Watch" {
			t.Errorf("%+v", step)
		}
	}
	if got := strings.Join(acts, " "); got != "open expect close silent end open cancel" {
		t.Error(got)
	}
	if s.Steps[1].Count != 2 || s.Steps[1].By != "2" || s.Steps[0].Body == nil || s.Steps[5].Body != nil {
		t.Errorf("%+v", s.Steps)
	}
}

func TestAVariableIsUsedWhereItsStandInIs(t *testing.T) {
	s := parse(t, "Lock name:\"a\" => key:$key\nRange key:$key => kvs.lease:$lease\nPut key:$key value:\"v\" lease:$lease\n")
	put := s.Steps[2]
	if len(put.Uses) != 2 || put.Uses[0] != (Slot{"1", "key"}) || put.Uses[1] != (Slot{"3", "lease"}) {
		t.Errorf("%+v", put.Uses)
	}
	if binds := s.Steps[1].Binds; len(binds) != 1 || binds[0] != (Slot{"2.6", "lease"}) {
		t.Errorf("%+v", binds)
	}
	if len(s.StandIns) != 2 || !strings.Contains(string(put.Body), string(s.StandIns["lease"])) {
		t.Errorf("%v", s.StandIns)
	}
}

func TestACaseBeginsWithAComment(t *testing.T) {
	if got := parse(t, "Put key:\"a\"\n# one\nPut key:\"a\"\nPut key:\"a\"\n# two\nPut key:\"a\"\n").Cases(); got != 3 {
		t.Error(got)
	}
}

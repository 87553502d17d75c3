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

func TestARawStepSendsExactlyItsBytes(t *testing.T) {
	s := parse(t, `Raw /a.B/C "\x00\xff"`+"\n")
	if string(s.Steps[0].Body) != "\x00\xff" || s.Steps[0].Method.Path != "/a.B/C" {
		t.Fatalf("%+v", s.Steps[0])
	}
}

func TestWhatCannotBeReadNamesItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"Put key:\"a\"\nPet key:\"a\"": "test:2: no method",
		"\n\nPut [[x y]]":              "test:3: bad repetition",
		"  limit:3":                    "test:1: a continuation",
		"Raw /a.B/C nothing":           "test:1: body of a raw step",
		"# only talk":                  "test: no step",
		"Put key:\"[[9999999 x]]\"":    "bad repetition",
	} {
		if _, err := Parse("test", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"os"

	"google.golang.org/protobuf/proto"

	"kv-server/interop/internal/process"
	"kv-server/interop/internal/script"
	"kv-server/interop/internal/session"
	"kv-server/interop/internal/wire"
)

// Recording is one file of answers. The replay in kv-server's tests reads exactly this.
type Recording struct {
	Script  string
	About   string
	Flags   []string                // of the server, besides the usual ones
	Varying map[string][]wire.Field // masked in the answers, by method
	// StandIns are what the requests hold in place of variables, see wire.Pack.
	StandIns map[string]string
	Steps    []Step
}

// Step is one call, or one act on a call that has a name, and what came of it. What a person reads stands first, what a
// machine needs at the end.
type Step struct {
	Why          string
	Call         string
	Act          script.Act
	Stream       string
	HasLeader    bool // the call has the metadata hasleader: true
	Times        int
	Sends        bool // the request fields are there
	Request      json.RawMessage
	Answers      []json.RawMessage // more than one only where the server streams
	Ends         bool              // code and message are there
	Code         string
	Message      string
	By           string
	Uses         []script.Slot
	Binds        []script.Slot
	Method       script.Method
	RequestBytes string // see wire.Pack
	AnswerBytes  []string
}

// How much of a generated call a reader is shown.
const callShownMax = 400

// tell runs one script against a fresh server.
func tell(binary string, s *script.Script) (*Recording, error) {
	dir, err := os.MkdirTemp("", "record-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	members, err := process.Prepare(binary, dir, 1)
	if err != nil {
		return nil, err
	}
	members[0].AddFlags(s.Flags...)
	if err := members[0].Start(); err != nil {
		return nil, err
	}
	defer members[0].Kill()
	connection, err := session.Dial(members[0])
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	recording := &Recording{
		Script: s.Name, About: s.About, Flags: s.Flags, Varying: map[string][]wire.Field{}, StandIns: map[string]string{},
	}
	for name, value := range s.StandIns {
		recording.StandIns[name] = wire.Pack(value)
	}
	player := player{connection, map[string]*session.Stream{}, s.StandIns, map[string][]byte{}}
	for i, step := range s.Steps {
		recorded, err := player.play(step)
		if err != nil {
			return nil, fmt.Errorf("%s.txt:%d: step %d, %s: %w", s.Name, step.At, i+1, abbreviate(step.Line), err)
		}
		recording.Varying[step.Method.Path] = wire.Varying(step.Method.Path)
		recording.Steps = append(recording.Steps, recorded)
	}
	return recording, player.finish(s.Name)
}

// blank makes an empty message, or none where the method is not one that we know.
func blank(make func() proto.Message) proto.Message {
	if make == nil {
		return nil
	}
	return make()
}

func abbreviate(line string) string {
	if len(line) > callShownMax {
		return line[:callShownMax] + "…"
	}
	return line
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
	Varying map[string][]wire.Field // masked in the answers, by method
	Steps   []Step
}

// Step is one call and how it ended. What a person reads stands first, what a machine needs at the end.
type Step struct {
	Why          string
	Call         string
	Request      json.RawMessage
	Answers      []json.RawMessage // more than one only where the server streams
	Code         string
	Message      string
	Method       string
	Streams      bool
	RequestBytes string // see wire.Pack
	AnswerBytes  []string
}

const (
	callTimeout = 10 * time.Second
	// How much of a generated call a reader is shown.
	callShownMax = 400
)

// tell runs one script against a fresh server.
func tell(binary string, s *script.Script) (*Recording, error) {
	dir, err := os.MkdirTemp("", "record-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	members, err := process.Start(binary, dir, 1)
	if err != nil {
		return nil, err
	}
	defer members[0].Kill()
	connection, err := session.Dial(members[0])
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	recording := &Recording{Script: s.Name, About: s.About, Varying: map[string][]wire.Field{}}
	for i, step := range s.Steps {
		recorded, err := call(connection, step)
		if err != nil {
			return nil, fmt.Errorf("step %d, %s: %w", i+1, step.Line, err)
		}
		recording.Varying[step.Method.Path] = wire.Varying(step.Method.Path)
		recording.Steps = append(recording.Steps, recorded)
	}
	return recording, nil
}

func call(connection *grpc.ClientConn, step script.Step) (Step, error) {
	recorded := Step{
		Why: step.Why, Call: abbreviate(step.Line), Method: step.Method.Path, Streams: step.Method.Streams,
		Answers: []json.RawMessage{}, RequestBytes: wire.Pack(step.Body), AnswerBytes: []string{},
	}
	recorded.Request = wire.Show(blank(step.Method.NewRequest), step.Body)
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	answers, err := session.Exchange(ctx, connection, step)
	for _, answer := range answers {
		answer = wire.Mask(answer, wire.Varying(step.Method.Path))
		recorded.Answers = append(recorded.Answers, wire.Show(blank(step.Method.NewResponse), answer))
		recorded.AnswerBytes = append(recorded.AnswerBytes, wire.Pack(answer))
	}
	how := status.Convert(err)
	// Go's protobuf spells the space in its errors differently from build to build, so that nobody compares them.
	recorded.Code, recorded.Message = how.Code().String(), strings.ReplaceAll(how.Message(), "\u00a0", " ")
	if code := how.Code(); code == codes.Unavailable || code == codes.DeadlineExceeded {
		return recorded, fmt.Errorf("no answer worth recording: %w", err)
	}
	return recorded, nil
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

// encode writes one field per line and one step per block, for readers and for line-wise differences.
func (r *Recording) encode() []byte {
	var out bytes.Buffer
	line := func(indent, name string, value any, end string) {
		var text bytes.Buffer
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(value); err != nil {
			panic(err) // plain strings, lists and text that is JSON already
		}
		fmt.Fprintf(&out, "%s%q: %s%s\n", indent, name, strings.TrimSpace(text.String()), end)
	}
	out.WriteString("{\n")
	line("", "script", r.Script, ",")
	line("", "about", r.About, ",")
	line("", "varying", r.Varying, ",")
	out.WriteString("\"steps\": [\n")
	for i, step := range r.Steps {
		out.WriteString("{\n")
		line("  ", "step", i+1, ",")
		if step.Why != "" {
			line("  ", "why", step.Why, ",")
		}
		line("  ", "call", step.Call, ",")
		line("  ", "request", step.Request, ",")
		line("  ", "answers", step.Answers, ",")
		line("  ", "code", step.Code, ",")
		line("  ", "message", step.Message, ",")
		line("  ", "method", step.Method, ",")
		line("  ", "streams", step.Streams, ",")
		line("  ", "request_bytes", step.RequestBytes, ",")
		line("  ", "answer_bytes", step.AnswerBytes, "")
		if i+1 < len(r.Steps) {
			out.WriteString("},\n")
		} else {
			out.WriteString("}\n")
		}
	}
	out.WriteString("]\n}\n")
	return out.Bytes()
}

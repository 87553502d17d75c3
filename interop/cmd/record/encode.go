package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"kv-server/interop/internal/script"
)

// object is a JSON object in which each field has its line.
type object struct {
	indent string
	lines  []string
}

func (o *object) add(name string, value any) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err) // plain strings, lists and text that is JSON already
	}
	o.lines = append(o.lines, fmt.Sprintf("%s%q: %s", o.indent, name, strings.TrimSpace(text.String())))
}

func (o *object) addIf(there bool, name string, value any) {
	if there {
		o.add(name, value)
	}
}

func (o *object) text() string { return strings.Join(o.lines, ",\n") }

// encode writes one field per line and one step per block, for readers and for line-wise differences.
func (r *Recording) encode() []byte {
	head := object{}
	head.add("script", r.Script)
	head.add("about", r.About)
	head.addIf(len(r.Flags) > 0, "flags", r.Flags)
	head.add("varying", r.Varying)
	head.addIf(len(r.StandIns) > 0, "stand_ins", r.StandIns)
	var steps []string
	for i, step := range r.Steps {
		steps = append(steps, "{\n"+step.encode(i+1)+"\n}")
	}
	return []byte("{\n" + head.text() + ",\n\"steps\": [\n" + strings.Join(steps, ",\n") + "\n]\n}\n")
}

func (s *Step) encode(number int) string {
	o := object{indent: "  "}
	begins := s.Act == script.Call || s.Act == script.Open
	o.add("step", number)
	o.addIf(s.Why != "", "why", s.Why)
	o.add("call", s.Call)
	o.addIf(s.Times > 1, "times", s.Times)
	o.addIf(s.Act != script.Call, "act", s.Act)
	o.addIf(s.Act != script.Call, "stream", s.Stream)
	o.addIf(s.HasLeader, "has_leader", s.HasLeader)
	o.addIf(s.Sends, "request", s.Request)
	o.addIf(s.Answers != nil, "answers", s.Answers)
	o.addIf(s.Ends, "code", s.Code)
	o.addIf(s.Ends, "message", s.Message)
	o.addIf(s.By != "", "ordered_by", s.By)
	o.addIf(len(s.Uses) > 0, "uses", s.Uses)
	o.addIf(len(s.Binds) > 0, "binds", s.Binds)
	o.addIf(begins, "method", s.Method.Path)
	o.addIf(begins, "streams", s.Method.Streams)
	o.addIf(s.Method.Sends && begins, "sends", s.Method.Sends)
	o.addIf(s.Sends, "request_bytes", s.RequestBytes)
	o.addIf(s.Answers != nil, "answer_bytes", s.AnswerBytes)
	return o.text()
}

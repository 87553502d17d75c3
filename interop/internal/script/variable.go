package script

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// variable is a value that the server chooses. Requests are encoded with a stand-in, which is replaced when they are
// sent.
type variable struct {
	bytes  bool   // or a number
	number uint64 // the stand-in of a number: far outside of what scripts use
}

const standInBase = 7_777_777_777_000

// standIns returns the encoded stand-in of each variable.
func (p *parser) standIns() map[string][]byte {
	encoded := map[string][]byte{}
	for name, variable := range p.variables {
		if variable.bytes {
			encoded[name] = protowire.AppendString(nil, fmt.Sprintf("$%d", variable.number))
		} else {
			encoded[name] = protowire.AppendVarint(nil, variable.number)
		}
	}
	return encoded
}

// standIn is the variable's value in the text of a request.
func (v variable) standIn() string {
	if v.bytes {
		return strconv.Quote(fmt.Sprintf("$%d", v.number))
	}
	return strconv.FormatUint(v.number, 10)
}

var used = regexp.MustCompile(`\$[a-z][a-z0-9]*`)

// parseRequest encodes the text of a request and notes the fields that take a variable.
func (p *parser) parseRequest(step *Step, text string) error {
	var unbound error
	text = used.ReplaceAllStringFunc(text, func(name string) string {
		variable, known := p.variables[name[1:]]
		if !known {
			unbound = fmt.Errorf("%s is not bound", name)
		}
		return variable.standIn()
	})
	if unbound != nil {
		return unbound
	}
	request := step.Method.NewRequest()
	if err := prototext.Unmarshal([]byte(text), request); err != nil {
		return err
	}
	var err error
	step.Uses = p.uses(request.ProtoReflect(), "")
	step.Body, err = proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if step.Body == nil {
		step.Body = []byte{}
	}
	return err
}

// uses finds the stand-ins in a request.
func (p *parser) uses(message protoreflect.Message, prefix string) []Slot {
	var slots []Slot
	fields := message.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		path := prefix + strconv.Itoa(int(field.Number()))
		switch value := message.Get(field); {
		case !message.Has(field) || field.IsMap():
		case field.IsList() && field.Message() != nil:
			for n := range value.List().Len() {
				slots = append(slots, p.uses(value.List().Get(n).Message(), path+".")...)
			}
		case field.IsList():
		case field.Message() != nil:
			slots = append(slots, p.uses(value.Message(), path+".")...)
		default:
			text := value.String()
			if field.Kind() == protoreflect.BytesKind {
				text = strconv.Quote(string(value.Bytes()))
			}
			for name, variable := range p.variables {
				if text == variable.standIn() {
					slots = append(slots, Slot{path, name})
				}
			}
		}
	}
	return slots
}

// parseBinds reads `field.field:$variable ...`, the fields of the answers that hold a variable's value.
func (p *parser) parseBinds(step *Step, text string) error {
	if step.Act != Call && step.Act != Expect && step.Act != End {
		return fmt.Errorf("a step without answers binds nothing")
	}
	if step.Method.NewResponse == nil {
		return fmt.Errorf("the answer has no fields that are known")
	}
	for _, word := range strings.Fields(text) {
		field, name, cut := strings.Cut(word, ":")
		if !cut || used.FindString(name) != name {
			return fmt.Errorf("%q is not field:$variable", word)
		}
		path, kind, err := resolve(step.Method.NewResponse(), field)
		if err != nil {
			return err
		}
		step.Binds = append(step.Binds, Slot{path, name[1:]})
		if _, known := p.variables[name[1:]]; !known {
			bytes := kind == protoreflect.BytesKind || kind == protoreflect.StringKind
			p.variables[name[1:]] = variable{bytes, standInBase + uint64(len(p.variables))}
		}
	}
	return nil
}

// resolve turns the names of fields, from the outermost message inwards, into their numbers.
func resolve(message proto.Message, names string) (string, protoreflect.Kind, error) {
	var path []string
	var kind protoreflect.Kind
	descriptor := message.ProtoReflect().Descriptor()
	for _, name := range strings.Split(names, ".") {
		if descriptor == nil {
			return "", 0, fmt.Errorf("%q leads beyond a message", names)
		}
		field := descriptor.Fields().ByName(protoreflect.Name(name))
		if field == nil {
			return "", 0, fmt.Errorf("%s has no field %q", descriptor.Name(), name)
		}
		path = append(path, strconv.Itoa(int(field.Number())))
		kind, descriptor = field.Kind(), field.Message()
	}
	if descriptor != nil {
		return "", 0, fmt.Errorf("%q is a message", names)
	}
	return strings.Join(path, "."), kind, nil
}

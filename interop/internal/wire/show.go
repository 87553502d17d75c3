package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// shownMax is how many bytes of one string a person gets to see; the exact bytes stand beside it anyway.
const shownMax = 80

// A list with more elements than listMax is shown by its first listShown.
const (
	listMax   = 256
	listShown = 8
)

// levelsMax is how many messages inside one another are shown: readers of JSON bound nesting, and a person stops before.
const levelsMax = 24

// Show writes a message as JSON for a person: fields in the order of their numbers, names as in the .proto file, bytes
// as text in which every byte is one code point. It is not meant to be read back.
func Show(message proto.Message, body []byte) json.RawMessage {
	if message == nil || proto.Unmarshal(body, message) != nil {
		return quote(body)
	}
	var out bytes.Buffer
	showMessage(&out, message.ProtoReflect(), levelsMax)
	return out.Bytes()
}

func showMessage(out *bytes.Buffer, message protoreflect.Message, levels int) {
	if levels == 0 {
		out.WriteString(`"…"`)
		return
	}
	out.WriteByte('{')
	fields := message.Descriptor().Fields()
	first := true
	for i := 0; i < fields.Len(); i++ {
		field := fields.Get(i)
		if !message.Has(field) {
			continue
		}
		if !first {
			out.WriteByte(',')
		}
		first = false
		fmt.Fprintf(out, "%q:", field.Name())
		if field.IsList() {
			showList(out, field, message.Get(field).List(), levels)
		} else {
			showValue(out, field, message.Get(field), levels)
		}
	}
	out.WriteByte('}')
}

func showList(out *bytes.Buffer, field protoreflect.FieldDescriptor, list protoreflect.List, levels int) {
	out.WriteByte('[')
	for i := 0; i < list.Len(); i++ {
		if i > 0 {
			out.WriteByte(',')
		}
		if list.Len() > listMax && i == listShown {
			fmt.Fprintf(out, "\"… (%d elements)\"", list.Len())
			break
		}
		showValue(out, field, list.Get(i), levels)
	}
	out.WriteByte(']')
}

func showValue(out *bytes.Buffer, field protoreflect.FieldDescriptor, value protoreflect.Value, levels int) {
	switch field.Kind() {
	case protoreflect.MessageKind:
		showMessage(out, value.Message(), levels-1)
	case protoreflect.BytesKind:
		out.Write(quote(value.Bytes()))
	case protoreflect.StringKind:
		out.Write(quote([]byte(value.String())))
	case protoreflect.EnumKind:
		if known := field.Enum().Values().ByNumber(value.Enum()); known != nil {
			fmt.Fprintf(out, "%q", known.Name())
		} else {
			fmt.Fprintf(out, "%d", value.Enum())
		}
	default:
		fmt.Fprint(out, value.Interface())
	}
}

func quote(raw []byte) json.RawMessage {
	var text strings.Builder
	for i, b := range raw {
		if i == shownMax {
			fmt.Fprintf(&text, "… (%d bytes)", len(raw))
			break
		}
		text.WriteRune(rune(b))
	}
	quoted, err := json.Marshal(text.String())
	if err != nil {
		panic(err) // a string always has a JSON form
	}
	return quoted
}

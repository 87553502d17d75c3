package script

import (
	"fmt"
	"strings"
)

// Matrix is one file of interop/cases: calls, each made with every credential.
//
//	# Text at the head of the file says what the matrix is about.
//
//	Before UserAdd name:"reader" password:"reader"   (made once, without a token, before the tokens are fetched)
//
//	Credentials none garbage reader root             (none: no token; garbage: a token that was never issued; the others: the
//	                                                  token of the user of this name, whose password is the name)
//
//	Root LeaseGrant TTL:60 ID:7                      (made by root before each call of the next row)
//	Put key:"a" lease:7                              (a row: the call is made with each credential in turn)
//
// Credentials stand once, after the last Before. Variables and named calls are not known here.
type Matrix struct {
	Name        string
	About       string
	Credentials []string
	Rows        []Row
}

// Role says how the call of a row is made.
type Role string

const (
	Before Role = "before"
	Root   Role = "root"
	Each   Role = "each"
)

// Row is one call.
type Row struct {
	Why  string
	Role Role
	Step Step
}

// Answered counts the rows that are answered to each credential.
func (m *Matrix) Answered() int {
	count := 0
	for _, row := range m.Rows {
		if row.Role == Each {
			count++
		}
	}
	return count
}

// ParseMatrix reads one file. An error names the line.
func ParseMatrix(name, text string) (*Matrix, error) {
	m := &Matrix{Name: name}
	p := parser{map[string]*stream{}, map[string]variable{}}
	var comment []string
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
			if m.About == "" && len(m.Rows) == 0 {
				m.About = strings.Join(comment, " ")
			}
			comment = nil
		case strings.HasPrefix(line, "#"):
			comment = append(comment, strings.TrimSpace(line[1:]))
		default:
			if err := m.add(&p, line, i+1, strings.Join(comment, " ")); err != nil {
				return nil, fmt.Errorf("%s.matrix:%d: %w", name, i+1, err)
			}
			comment = nil
		}
	}
	if m.Answered() == 0 || m.Rows[len(m.Rows)-1].Role != Each {
		return nil, fmt.Errorf("%s.matrix: the last row is not one that every credential calls", name)
	}
	return m, nil
}

func (m *Matrix) add(p *parser, line string, at int, why string) error {
	row := Row{Why: why, Role: Each}
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "Credentials":
		if m.Credentials != nil {
			return fmt.Errorf("there are credentials already")
		}
		m.Credentials = strings.Fields(rest)
		return nil
	case "Before":
		row.Role, line = Before, rest
	case "Root":
		row.Role, line = Root, rest
	}
	if (m.Credentials == nil) != (row.Role == Before) {
		return fmt.Errorf("%s rows stand on the other side of Credentials", row.Role)
	}
	step, err := p.parseStep(line)
	if err != nil {
		return err
	}
	if step.Act != Call || step.Times != 1 || len(step.Uses)+len(step.Binds) > 0 {
		return fmt.Errorf("a row is one plain call")
	}
	step.At = at
	row.Step = step
	m.Rows = append(m.Rows, row)
	return nil
}

package script

import (
	"strings"
	"testing"
)

func TestAMatrixHasRowsOfThreeRoles(t *testing.T) {
	m, err := ParseMatrix("test", "# about\n\nBefore AuthEnable\nCredentials none root\n\n# why\nRoot Put key:\"a\"\nRange key:\"a\"\n")
	if err != nil {
		t.Fatal(err)
	}
	roles := []Role{m.Rows[0].Role, m.Rows[1].Role, m.Rows[2].Role}
	if m.About != "about" || m.Rows[1].Why != "why" || m.Answered() != 1 || len(m.Credentials) != 2 ||
		roles[0] != Before || roles[1] != Root || roles[2] != Each {
		t.Fatalf("%+v", m)
	}
}

func TestAMatrixIsRefusedWithTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"Range key:\"a\"":                                      "matrix:1: each rows stand on the other side",
		"Credentials none\nBefore AuthEnable":                  "matrix:2: before rows stand on the other side",
		"Credentials none\nCredentials none":                   "matrix:2: there are credentials already",
		"Credentials none\nNothing":                            "matrix:2: no method and no stream",
		"Credentials none\nRepeat 2 AuthStatus":                "matrix:2: a row is one plain call",
		"Credentials none\nw = Watch create_request:{}":        "matrix:2: a row is one plain call",
		"Credentials none\nLeaseGrant TTL:1 => ID:$a":          "matrix:2: a row is one plain call",
		"Credentials none\nAuthStatus\nRoot Defragment":        "the last row",
		"Before AuthEnable\nCredentials none\n# about nothing": "the last row",
	} {
		if _, err := ParseMatrix("test", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

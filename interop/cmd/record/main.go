// Command record tells every script of interop/cases to a fresh etcd and writes down what it answers.
//
//	record -etcd bin/etcd -cases cases -out ../crates/kv-server/tests/conformance/recordings
//	record -check ...        writes nothing: fails where etcd answers other than recorded
//
// A matrix of interop/cases (*.matrix) is recorded in the same way, next to the recordings of scripts.
//
// Recordings hold the request bytes as they were sent and the answer bytes as they came, with the few fields masked
// that differ from run to run. Recording twice gives the same files; a difference in version control is a finding.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"

	"kv-server/interop/internal/script"
)

// sessionsMax is how many etcds run at once: starting one is mostly waiting for its election.
const sessionsMax = 4

func main() {
	log.SetFlags(0)
	etcd := flag.String("etcd", "bin/etcd", "server to record")
	cases := flag.String("cases", "cases", "directory of the scripts")
	out := flag.String("out", "../crates/kv-server/tests/conformance/recordings", "directory of the recordings")
	check := flag.Bool("check", false, "compare with the recordings instead of writing them")
	flag.Parse()
	if err := run(*etcd, *cases, *out, *check, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// run records the scripts with the given names, or all of them.
func run(etcd, cases, out string, check bool, names []string) error {
	paths, err := filepath.Glob(filepath.Join(cases, "*.*"))
	if err != nil {
		return err
	}
	sort.Strings(paths)
	var tasks []task
	for _, path := range paths {
		name, kind, _ := strings.Cut(filepath.Base(path), ".")
		if len(names) > 0 && !contains(names, name) {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		parsed, err := parse(etcd, name, kind, string(text))
		if err != nil {
			return err
		}
		tasks = append(tasks, parsed)
	}
	if len(tasks) == 0 {
		return fmt.Errorf("no script in %s", cases)
	}
	return recordAll(out, check, tasks)
}

// task is one file of cases, and how it is recorded.
type task struct {
	name, file   string // the file: that of the recording
	cases, steps int
	record       func() ([]byte, error)
}

func parse(etcd, name, kind, text string) (task, error) {
	if kind == "matrix" {
		m, err := script.ParseMatrix(name, text)
		if err != nil {
			return task{}, err
		}
		record := func() ([]byte, error) { return recordMatrix(etcd, m) }
		answered := m.Answered()
		return task{name, name + ".matrix", answered, answered * len(m.Credentials), record}, nil
	}
	s, err := script.Parse(name, text)
	if err != nil {
		return task{}, err
	}
	record := func() ([]byte, error) {
		recording, err := tell(etcd, s)
		if err != nil {
			return nil, err
		}
		return recording.encode(), nil
	}
	return task{name, name + ".json", s.Cases(), len(s.Steps), record}, nil
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

func recordAll(out string, check bool, tasks []task) error {
	var all sync.WaitGroup
	var lock sync.Mutex
	cases, steps, failures := 0, 0, 0
	slots := make(chan struct{}, sessionsMax)
	for _, t := range tasks {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			err := recordOne(out, check, t)
			lock.Lock()
			defer lock.Unlock()
			cases += t.cases
			steps += t.steps
			if err != nil {
				failures++
				log.Printf("%s: %v", t.name, err)
			}
		})
	}
	all.Wait()
	fmt.Printf("%d scripts, %d cases, %d steps, %d failed\n", len(tasks), cases, steps, failures)
	if failures > 0 {
		return fmt.Errorf("%d scripts failed", failures)
	}
	return nil
}

func recordOne(out string, check bool, t task) error {
	text, err := t.record()
	if err != nil {
		return err
	}
	path := filepath.Join(out, t.file)
	if !check {
		return os.WriteFile(path, text, 0o644)
	}
	recorded, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !bytes.Equal(recorded, text) {
		return fmt.Errorf("etcd answers other than recorded:\n%s", firstDifference(recorded, text))
	}
	return nil
}

func firstDifference(recorded, now []byte) string {
	a, b := strings.Split(string(recorded), "\n"), strings.Split(string(now), "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d\n- %s\n+ %s", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d lines recorded, %d now", len(a), len(b))
}

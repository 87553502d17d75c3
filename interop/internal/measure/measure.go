// Package measure has what experiments share that compare servers: which ones, latencies, and how figures are printed.
package measure

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Server is a program to measure.
type Server struct {
	Name, Binary string
}

// Servers is a repeatable flag of the form NAME=PROGRAM.
type Servers []Server

func (s *Servers) String() string { return fmt.Sprint(*s) }

func (s *Servers) Set(text string) error {
	name, binary, found := strings.Cut(text, "=")
	if !found {
		return fmt.Errorf("expected NAME=PROGRAM, not %q", text)
	}
	path, err := filepath.Abs(binary)
	*s = append(*s, Server{name, path})
	return err
}

// Latencies are collected by many callers.
type Latencies struct {
	mutex sync.Mutex
	all   []time.Duration
}

func (l *Latencies) Add(latency time.Duration) {
	l.mutex.Lock()
	l.all = append(l.all, latency)
	l.mutex.Unlock()
}

// Count is the number of latencies.
func (l *Latencies) Count() int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return len(l.all)
}

// Quantile is the value below which the share `of` lies; 0 without any.
func (l *Latencies) Quantile(of float64) time.Duration {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if len(l.all) == 0 {
		return 0
	}
	slices.Sort(l.all)
	return l.all[min(len(l.all)-1, int(of*float64(len(l.all))))]
}

func (l *Latencies) String() string {
	return fmt.Sprintf("p50 %s, p99 %s, p99.9 %s ms", Milliseconds(l.Quantile(0.5)), Milliseconds(l.Quantile(0.99)),
		Milliseconds(l.Quantile(0.999)))
}

// Milliseconds are printed without their unit.
func Milliseconds(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d.Microseconds())/1000) }

// Mebibytes are printed with their unit.
func Mebibytes(bytes int64) string { return fmt.Sprintf("%.0f MiB", float64(bytes)/(1<<20)) }

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics are the metrics of one process at one moment.
type Metrics map[string]*dto.MetricFamily

// Metrics reads the metrics of the apiserver.
func (s *APIServer) Metrics(ctx context.Context) (Metrics, error) {
	body, err := s.Get(ctx, "/metrics", "text/plain")
	if err != nil {
		return nil, err
	}
	return parse(bytes.NewReader(body))
}

// Sum adds the values of a counter over all members.
func (m *Members) Sum(ctx context.Context, name string, labels map[string]string) (float64, error) {
	client := &http.Client{Timeout: probeTimeout}
	defer client.CloseIdleConnections()
	total := 0.0
	for _, one := range m.members {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, one.metricsURL+"/metrics", nil)
		if err != nil {
			return 0, err
		}
		response, err := client.Do(request)
		if err != nil {
			return 0, err
		}
		metrics, err := parse(response.Body)
		_ = response.Body.Close()
		if err != nil {
			return 0, fmt.Errorf("metrics of %s: %w", one.name, err)
		}
		total += metrics.Sum(name, labels)
	}
	return total, nil
}

func parse(from io.Reader) (Metrics, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	return parser.TextToMetricFamilies(from)
}

// Sum adds the values of a counter or gauge over all series with the labels. A metric that does not exist
// counts 0.
func (m Metrics) Sum(name string, labels map[string]string) float64 {
	total := 0.0
	for _, series := range m.series(name, labels) {
		total += series.GetCounter().GetValue() + series.GetGauge().GetValue()
	}
	return total
}

func (m Metrics) series(name string, labels map[string]string) []*dto.Metric {
	family, exists := m[name]
	if !exists {
		return nil
	}
	var matching []*dto.Metric
	for _, series := range family.Metric {
		matched := 0
		for _, label := range series.Label {
			if want, isWanted := labels[label.GetName()]; isWanted && want == label.GetValue() {
				matched++
			}
		}
		if matched == len(labels) {
			matching = append(matching, series)
		}
	}
	return matching
}

// Histogram is the difference of a histogram between two moments.
type Histogram struct {
	// Count and Sum are of all observations; Sum is in seconds.
	Count, Sum float64
	bounds     []float64
	cumulative []float64
}

// Since is what a histogram observed since an earlier moment, summed over all series with the labels.
func (m Metrics) Since(earlier Metrics, name string, labels map[string]string) Histogram {
	var total Histogram
	total.add(m.series(name, labels), 1)
	total.add(earlier.series(name, labels), -1)
	return total
}

func (h *Histogram) add(all []*dto.Metric, sign float64) {
	for _, series := range all {
		histogram := series.GetHistogram()
		h.Count += sign * float64(histogram.GetSampleCount())
		h.Sum += sign * histogram.GetSampleSum()
		if h.bounds == nil {
			h.cumulative = make([]float64, len(histogram.Bucket))
			for _, bucket := range histogram.Bucket {
				h.bounds = append(h.bounds, bucket.GetUpperBound())
			}
		}
		for i, bucket := range histogram.Bucket {
			h.cumulative[i] += sign * float64(bucket.GetCumulativeCount())
		}
	}
}

// Mean is the mean of the observations, in seconds.
func (h Histogram) Mean() float64 { return h.Sum / h.Count }

// Quantile estimates a quantile as Prometheus does: by the share of the bucket that it lies in.
func (h Histogram) Quantile(q float64) float64 {
	rank, lower, below := q*h.Count, 0.0, 0.0
	for i, bound := range h.bounds {
		if h.cumulative[i] >= rank {
			if math.IsInf(bound, 1) || h.cumulative[i] == below {
				return lower
			}
			return lower + (bound-lower)*(rank-below)/(h.cumulative[i]-below)
		}
		lower, below = bound, h.cumulative[i]
	}
	return lower
}

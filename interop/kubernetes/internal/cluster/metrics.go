package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics are the metrics of one process at one moment.
type Metrics map[string]*dto.MetricFamily

// Metrics reads the metrics of the apiserver, with its native histograms, which only this format has.
func (s *APIServer) Metrics(ctx context.Context) (Metrics, error) {
	format := expfmt.NewFormat(expfmt.TypeProtoDelim)
	body, err := s.Get(ctx, "/metrics", string(format))
	if err != nil {
		return nil, err
	}
	metrics, decoder := Metrics{}, expfmt.NewDecoder(bytes.NewReader(body), format)
	for {
		family := &dto.MetricFamily{}
		if err := decoder.Decode(family); errors.Is(err, io.EOF) {
			return metrics, nil
		} else if err != nil {
			return nil, fmt.Errorf("metrics of the apiserver: %w", err)
		}
		metrics[family.GetName()] = family
	}
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
		parser := expfmt.NewTextParser(model.LegacyValidation)
		metrics, err := parser.TextToMetricFamilies(response.Body)
		_ = response.Body.Close()
		if err != nil {
			return 0, fmt.Errorf("metrics of %s: %w", one.name, err)
		}
		total += Metrics(metrics).Sum(name, labels)
	}
	return total, nil
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

// Histogram is the difference of a native histogram between two moments. Bucket i has the observations above
// base^(i-1) and up to base^i, where base is 2^(2^-schema).
type Histogram struct {
	// Count and Sum are of all observations; Sum is in seconds.
	Count, Sum float64
	schema     int32
	zero       float64 // observations too small for a bucket
	buckets    map[int]float64
}

// The finest that exists: the first series that is added makes it coarser.
const schemaMax = 8

// Since is what a histogram observed since an earlier moment, summed over all series with the labels.
func (m Metrics) Since(earlier Metrics, name string, labels map[string]string) Histogram {
	total := Histogram{schema: schemaMax, buckets: map[int]float64{}}
	total.add(m.series(name, labels), 1)
	total.add(earlier.series(name, labels), -1)
	return total
}

func (h *Histogram) add(all []*dto.Metric, sign float64) {
	for _, series := range all {
		histogram := series.GetHistogram()
		h.Count += sign * float64(histogram.GetSampleCount())
		h.Sum += sign * histogram.GetSampleSum()
		if histogram.Schema == nil {
			continue // a classic histogram: the quantile is unknown
		}
		h.zero += sign * float64(histogram.GetZeroCount())
		h.coarsen(histogram.GetSchema())
		index, next, count := 0, 0, int64(0)
		for _, span := range histogram.GetPositiveSpan() {
			index += int(span.GetOffset())
			for range span.GetLength() {
				count += histogram.GetPositiveDelta()[next]
				h.buckets[coarser(index, histogram.GetSchema()-h.schema)] += sign * float64(count)
				index, next = index+1, next+1
			}
		}
	}
}

// coarsen makes the buckets as wide as those of the schema, unless they are wider.
func (h *Histogram) coarsen(schema int32) {
	if schema >= h.schema {
		return
	}
	wider := map[int]float64{}
	for index, count := range h.buckets {
		wider[coarser(index, h.schema-schema)] += count
	}
	h.schema, h.buckets = schema, wider
}

// coarser is the bucket that holds a bucket after each pair was merged so many times.
func coarser(index int, times int32) int {
	for range times {
		index = (index + 1) >> 1
	}
	return index
}

// Mean is the mean of the observations, in seconds.
func (h Histogram) Mean() float64 { return h.Sum / h.Count }

// Quantile estimates a quantile, in seconds: by the share of the bucket that it lies in. It is not a number if
// there are no native buckets.
func (h Histogram) Quantile(q float64) float64 {
	rank, below := q*h.Count, h.zero
	if len(h.buckets) == 0 {
		return math.NaN()
	}
	if rank <= below {
		return 0
	}
	base := math.Exp2(math.Exp2(-float64(h.schema)))
	indices := slices.Sorted(maps.Keys(h.buckets))
	for _, index := range indices {
		count := h.buckets[index]
		if count > 0 && below+count >= rank {
			return math.Pow(base, float64(index-1)+(rank-below)/count)
		}
		below += count
	}
	return math.Pow(base, float64(indices[len(indices)-1]))
}

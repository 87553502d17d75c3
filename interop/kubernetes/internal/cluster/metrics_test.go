package cluster

import (
	"math"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// observed is a histogram as the apiserver makes it, after the observations.
func observed(t *testing.T, name string, observations []float64) Metrics {
	t.Helper()
	histogram := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: name, Buckets: []float64{0.005, 0.025}, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
	})
	for _, one := range observations {
		histogram.Observe(one)
	}
	written := &dto.Metric{}
	if err := histogram.Write(written); err != nil {
		t.Fatal(err)
	}
	return Metrics{name: {Metric: []*dto.Metric{written}}}
}

func TestQuantilesAreThoseOfTheObservations(t *testing.T) {
	var before, after []float64
	for i := range 500 {
		before = append(before, float64(i+1)/1e5)
	}
	after = append(after, before...)
	for i := range 1000 {
		after = append(after, float64(i+1)/1e6) // 1 µs to 1 ms: far below the first classic bound
	}
	const name = "x"
	since := observed(t, name, after).Since(observed(t, name, before), name, nil)
	if since.Count != 1000 || math.Abs(since.Mean()-500.5e-6) > 1e-9 {
		t.Errorf("%v observations, mean %v", since.Count, since.Mean())
	}
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 1} {
		if got, want := since.Quantile(q), q*1e-3; got < want/1.1 || got > want*1.1 {
			t.Errorf("quantile %v is %v, want %v within a bucket", q, got, want)
		}
	}
}

func TestBucketsOfTwoSchemasAreAdded(t *testing.T) {
	fine, coarse := int32(1), int32(0)
	series := func(schema *int32, offset int32, counts ...int64) *dto.Metric {
		length, total := uint32(len(counts)), uint64(0)
		var deltas []int64
		for i, count := range counts {
			last := int64(0)
			if i > 0 {
				last = counts[i-1]
			}
			deltas, total = append(deltas, count-last), total+uint64(count)
		}
		return &dto.Metric{Histogram: &dto.Histogram{
			SampleCount: &total, Schema: schema,
			PositiveSpan: []*dto.BucketSpan{{Offset: &offset, Length: &length}}, PositiveDelta: deltas,
		}}
	}
	// Of the fine one, buckets 1 and 2 are bucket 1 of the coarse one, and buckets -1 and 0 are its bucket 0.
	metrics := Metrics{"x": {Metric: []*dto.Metric{series(&fine, -1, 1, 2, 3, 4), series(&coarse, 1, 10)}}}
	sum := metrics.Since(nil, "x", nil)
	if sum.schema != coarse || sum.Count != 20 || sum.buckets[0] != 3 || sum.buckets[1] != 17 {
		t.Errorf("%+v", sum)
	}
	if got := sum.Quantile(3. / 20); got != 1 {
		t.Errorf("three observations are up to 1, so the quantile is not %v", got)
	}
}

func TestAClassicHistogramHasNoQuantile(t *testing.T) {
	count := uint64(1)
	metrics := Metrics{"x": {Metric: []*dto.Metric{{Histogram: &dto.Histogram{SampleCount: &count}}}}}
	if got := metrics.Since(nil, "x", nil).Quantile(0.5); !math.IsNaN(got) {
		t.Errorf("a quantile of %v from no buckets", got)
	}
}

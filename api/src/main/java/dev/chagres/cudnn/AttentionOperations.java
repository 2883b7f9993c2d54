package dev.chagres.cudnn;

import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;

/**
 * The operations of attention in the order and with the types that cuDNN's engines look for.
 *
 * <p>Threading: that of the builder.
 */
record AttentionOperations(
        GraphBuilder graph,
        String name,
        GraphTensor q,
        GraphTensor kT,
        float scale,
        Band band,
        UnaryOperator<GraphTensor> scores,
        Extras extras) {
    private static final int ROWS = 2;
    private static final int COLUMNS = 3;

    /** Which keys a query sees; {@code Long.MAX_VALUE} are all. */
    record Band(long before, long after, AttentionBuilder.Diagonal diagonal) {}

    /** What not every attention has. */
    record Extras(
            @Nullable GraphTensor bias,
            @Nullable GraphTensor slopes,
            @Nullable GraphTensor sink,
            @Nullable GraphTensor queryLengths,
            @Nullable GraphTensor keyLengths,
            float dropout,
            @Nullable GraphTensor seed,
            @Nullable GraphTensor offset,
            BiasGradient biasGradient) {}

    /** Whether the backward pass gives that of the bias. */
    enum BiasGradient {
        NONE,
        GIVEN
    }

    SdpaForward forward(GraphTensor v) {
        values("v", v, 2);
        Softmax softmax = softmax(masked(padded(scaled(products(queriesAndKeys(), q, kT, ".product")))));
        GraphTensor powers = softmax.powers();
        GraphTensor total = softmax.sum();
        GraphTensor dropped = dropped();
        GraphTensor weights;
        if (dropped == null) {
            weights = typed(q.type(), () -> op(".weights", PointwiseMode.DIV, powers, total));
        } else {
            GraphTensor all = op(".allWeights", PointwiseMode.DIV, powers, total);
            GraphTensor left = op(".leftWeights", PointwiseMode.MUL, all, dropped);
            weights = typed(q.type(), () -> op(".weights", PointwiseMode.MUL, left, number(".kept", kept())));
        }
        GraphTensor stats = graph.mayStayUnread(softmax.stats()); // but cuDNN's engines look for them
        return new SdpaForward(products(queriesByKeys(), weights, v, ""), stats, dropped);
    }

    /** Powers of scores, their sum over each row, and its logarithm. */
    record Softmax(GraphTensor powers, GraphTensor sum, GraphTensor stats) {}

    Softmax softmax(GraphTensor x) {
        GraphTensor most =
                graph.reduction(name + (extras.sink() == null ? ".max" : ".keyMax"), ReductionMode.MAX, x, COLUMNS);
        GraphTensor sink = extras.sink();
        if (sink != null) {
            most = op(".max", PointwiseMode.MAX, most, sink);
        }
        GraphTensor powers = op(".exp", PointwiseMode.EXP, op(".exponent", PointwiseMode.SUB, x, most));
        GraphTensor sum =
                graph.reduction(name + (sink == null ? ".sum" : ".keySum"), ReductionMode.ADD, powers, COLUMNS);
        if (sink != null) {
            GraphTensor power = op(".sinkExp", PointwiseMode.EXP, op(".sinkExponent", PointwiseMode.SUB, sink, most));
            sum = op(".sum", PointwiseMode.ADD, sum, power);
        }
        GraphTensor stats = op(".stats", PointwiseMode.ADD, most, op(".logSum", PointwiseMode.LOG, sum));
        return new Softmax(powers, sum, stats);
    }

    /** Checks values, whose heads may be shared by neighbours; {@code tokens} is the dimension of their tokens. */
    void values(String argument, GraphTensor v, int tokens) {
        boolean fits = graph.own("attention", name, argument, v).rank() == 4
                && v.dim(0) == q.dim(0)
                && v.dim(tokens) == kT.dim(3)
                && q.dim(1) % v.dim(1) == 0;
        if (!fits) {
            String expected = (tokens == 2 ? "[B, Hv, Skv, Dv]" : "[B, Hv, Dv, Skv]") + " with B and Skv of " + kT
                    + ", where Hv divides H of " + q;
            throw GraphChecks.refusal("attention", name, argument, expected, v);
        }
    }

    SdpaGradients backward(
            GraphTensor dy,
            GraphTensor vT,
            GraphTensor o,
            GraphTensor stats,
            UnaryOperator<GraphTensor> scoreGradients) {
        checkBackward(dy, vT, o, stats);
        GraphTensor dropped = dropped();
        GraphTensor along =
                graph.reduction(name + ".along", ReductionMode.ADD, op(".dyO", PointwiseMode.MUL, dy, o), COLUMNS);
        GraphTensor dsink = sinkGradient(along, stats);
        // cuDNN wants this product, also by 1, and its result in memory.
        GraphTensor rowSums = graph.output(
                op(".rowSums", PointwiseMode.MUL, along, number(".alongFactor", 1 / kept())), DataType.FLOAT);

        GraphTensor x = padded(scaled(products(queriesAndKeys(), q, kT, ".product")));
        GraphTensor shares = op(".shares", PointwiseMode.EXP, masked(op(".exponent", PointwiseMode.SUB, x, stats)));
        GraphTensor weights = shares;
        GraphTensor factor = dropped == null ? null : number(".kept", kept());
        if (dropped != null && factor != null) {
            weights = op(".weights", PointwiseMode.MUL, op(".leftWeights", PointwiseMode.MUL, shares, dropped), factor);
        }
        MatmulLimits toKeys = keysByQueries();
        GraphTensor dv = shared(
                products(toKeys, turned(".weightsT", weights, q.type()), dy, vT.dim(1), ".dv"), vT.dim(1), ".dv");

        GraphTensor ds = products(queriesAndKeys(), dy, vT, ".dWeights");
        if (dropped != null) {
            ds = op(".dLeft", PointwiseMode.MUL, ds, dropped);
        }
        ds = op(".dShares", PointwiseMode.MUL, op(".dCentered", PointwiseMode.SUB, ds, rowSums), shares);
        if (factor != null) {
            ds = op(".dKept", PointwiseMode.MUL, ds, factor);
        }
        GraphTensor dbias = biasGradient(ds);
        ds = op(".dScores", PointwiseMode.MUL, scoreGradients.apply(ds), number(".dScale", scale));
        GraphTensor dk =
                shared(products(toKeys, turned(".dScoresT", ds, q.type()), q, kT.dim(1), ".dk"), kT.dim(1), ".dk");
        GraphTensor keys = Layouts.transpose(graph, name + ".keys", kT, 0, 1, COLUMNS, ROWS);
        GraphTensor dq = products(queriesByKeys(), ds, keys, ".dq");
        return new SdpaGradients(dq, dk, dv, rowSums, dbias, dsink);
    }

    void checkBackward(GraphTensor dy, GraphTensor vT, GraphTensor o, GraphTensor stats) {
        values("vT", vT, 3);
        GraphChecks.sized(graph, "attention", name, "dy", dy, q.dim(0), q.dim(1), q.dim(2), vT.dim(2));
        GraphChecks.sized(graph, "attention", name, "o", o, dy.dims());
        GraphChecks.sized(graph, "attention", name, "stats", stats, q.dim(0), q.dim(1), q.dim(2), 1);
    }

    /** Adds products of all heads of queries, in the type of q where heads of keys are fewer: cuDNN sums those. */
    private GraphTensor products(MatmulLimits limits, GraphTensor a, GraphTensor b, long heads, String part) {
        return heads == q.dim(1)
                ? products(limits, a, b, part)
                : typed(q.type(), () -> products(limits, a, b, part + "OfQueries"));
    }

    /** Sums what neighbours give that share a head. */
    GraphTensor shared(GraphTensor ofQueries, long heads, String part) {
        long[] dims = ofQueries.dims();
        if (dims[1] == heads) {
            return ofQueries;
        }
        dims[1] = heads;
        return Pointwises.reduced(graph, name + part, ReductionMode.ADD, ofQueries, dims);
    }

    /** The gradient of the bias: sums over what it is repeated along. */
    private @Nullable GraphTensor biasGradient(GraphTensor ds) {
        GraphTensor bias = extras.bias();
        return bias == null || extras.biasGradient() == BiasGradient.NONE
                ? null
                : Pointwises.reduced(graph, name + ".dbias", ReductionMode.ADD, ds, bias.dims());
    }

    /** The gradient -exp(sink - stats) o dy of the sink: cuDNN's engine puts the minus, as these operations do not. */
    private @Nullable GraphTensor sinkGradient(GraphTensor along, GraphTensor stats) {
        GraphTensor sink = extras.sink();
        if (sink == null) {
            return null;
        }
        GraphTensor share = op(".sinkShare", PointwiseMode.EXP, op(".sinkBehind", PointwiseMode.SUB, sink, stats));
        GraphTensor each = op(".dsinkOfRows", PointwiseMode.MUL, share, along);
        return Pointwises.reduced(graph, name + ".dsink", ReductionMode.ADD, each, sink.dims());
    }

    MatmulLimits queriesAndKeys() {
        return new MatmulLimits(extras.queryLengths(), extras.keyLengths(), null);
    }

    /** Products over keys, for each query. */
    MatmulLimits queriesByKeys() {
        return new MatmulLimits(extras.queryLengths(), null, extras.keyLengths());
    }

    /** Products over queries, for each key. */
    MatmulLimits keysByQueries() {
        return new MatmulLimits(extras.keyLengths(), null, extras.queryLengths());
    }

    private float kept() {
        return 1 / (1 - extras.dropout());
    }

    GraphTensor turned(String part, GraphTensor x, DataType type) {
        return Layouts.transpose(graph, name + part, x, type, 0, 1, COLUMNS, ROWS);
    }

    GraphTensor products(MatmulLimits limits, GraphTensor a, GraphTensor b, String part) {
        return graph.matmul(name + part, a, b, limits);
    }

    GraphTensor number(String part, float value) {
        return graph.scalar(name + part, 4, value);
    }

    GraphTensor op(String part, PointwiseMode mode, GraphTensor... inputs) {
        return graph.pointwise(name + part, mode, inputs);
    }

    GraphTensor typed(DataType results, Supplier<GraphTensor> operation) {
        return graph.typed(graph.compute(), results, operation);
    }

    /** Integers are computed as such, comparisons as truth values: so cuDNN's engines know a mask. */
    private GraphTensor integer(String part, PointwiseMode mode, GraphTensor a, GraphTensor b) {
        return graph.typed(DataType.INT32, DataType.INT32, () -> op(part, mode, a, b));
    }

    private GraphTensor truth(String part, PointwiseMode mode, GraphTensor a, GraphTensor b) {
        return graph.typed(DataType.BOOLEAN, DataType.BOOLEAN, () -> op(part, mode, a, b));
    }

    private GraphTensor index(String part, int axis, GraphTensor x) {
        return graph.pointwise(name + part, PointwiseMode.GEN_INDEX, PointwiseConfig.DEFAULT.withAxis(axis), x);
    }

    /** cuDNN's engines know the indices of slopes and lengths by integer arithmetic, those of masks by that of the graph. */
    private GraphTensor wholeIndex(String part, int axis, GraphTensor x) {
        return graph.typed(DataType.INT32, DataType.INT32, () -> index(part, axis, x));
    }

    private @Nullable GraphTensor dropped() {
        GraphTensor seed = extras.seed();
        GraphTensor offset = extras.offset();
        if (seed == null || offset == null || extras.dropout() == 0) {
            return null;
        }
        RngDistribution kept = new RngDistribution.Bernoulli(1 - (double) extras.dropout());
        return graph.rng(name + ".dropped", kept, seed, offset, q.dim(0), q.dim(1), q.dim(2), kT.dim(3));
    }

    /** The scale, the caller's change, bias and slopes. */
    GraphTensor scaled(GraphTensor product) {
        GraphTensor x = scores.apply(op(".scores", PointwiseMode.MUL, product, number(".scale", scale)));
        GraphChecks.sized(graph, "attention", name, "scores", x, product.dims());
        GraphTensor bias = extras.bias();
        if (bias != null) {
            x = op(".biased", PointwiseMode.ADD, x, bias);
        }
        GraphTensor slopes = extras.slopes();
        if (slopes == null) {
            return x;
        }
        GraphTensor distance = integer(
                ".distance",
                PointwiseMode.SUB,
                wholeIndex(".slopeColumn", COLUMNS, x),
                wholeIndex(".slopeRow", ROWS, x));
        return op(".sloped", PointwiseMode.ADD, x, op(".slope", PointwiseMode.MUL, distance, slopes));
    }

    /** Hides what lies beyond the tokens of a sequence. */
    GraphTensor padded(GraphTensor x) {
        GraphTensor queries = extras.queryLengths();
        GraphTensor keys = extras.keyLengths();
        if (queries == null || keys == null) {
            return x;
        }
        GraphTensor row = truth(".isQuery", PointwiseMode.CMP_LT, wholeIndex(".paddedRow", ROWS, x), queries);
        GraphTensor column = truth(".isKey", PointwiseMode.CMP_LT, wholeIndex(".paddedColumn", COLUMNS, x), keys);
        return hidden(".padded", x, truth(".isToken", PointwiseMode.LOGICAL_AND, row, column));
    }

    private GraphTensor hidden(String part, GraphTensor x, GraphTensor seen) {
        return op(part, PointwiseMode.BINARY_SELECT, x, number(part + "Value", Float.NEGATIVE_INFINITY), seen);
    }

    /** Hides the keys after, and then those before the window. */
    GraphTensor masked(GraphTensor x) {
        GraphTensor result = x;
        if (band.after() != Long.MAX_VALUE) {
            GraphTensor row = index(".afterRow", ROWS, x);
            GraphTensor column = index(".afterColumn", COLUMNS, x);
            if (band.diagonal() == AttentionBuilder.Diagonal.BOTTOM_RIGHT) {
                row = integer(
                        ".afterKeys", PointwiseMode.ADD, row, tokens(".afterKeyCount", extras.keyLengths(), kT.dim(3)));
                row = integer(
                        ".afterQueries",
                        PointwiseMode.SUB,
                        row,
                        tokens(".afterQueryCount", extras.queryLengths(), q.dim(2)));
            }
            if (band.after() != 0) {
                row = integer(".afterEdge", PointwiseMode.ADD, row, whole(".afterWindow", band.after()));
            }
            result = hidden(".after", result, truth(".notAfter", PointwiseMode.CMP_GE, row, column));
        }
        return band.before() == Long.MAX_VALUE ? result : maskedBefore(result);
    }

    /** The comparison is strict, so that one more key is in the window's number. */
    private GraphTensor maskedBefore(GraphTensor x) {
        GraphTensor row = index(".beforeRow", ROWS, x);
        GraphTensor column = index(".beforeColumn", COLUMNS, x);
        boolean bottom = band.diagonal() == AttentionBuilder.Diagonal.BOTTOM_RIGHT;
        if (bottom && extras.keyLengths() != null) {
            column = integer(".beforeEdge", PointwiseMode.ADD, column, whole(".beforeWindow", band.before() + 1));
            column = integer(
                    ".beforeKeys",
                    PointwiseMode.SUB,
                    column,
                    tokens(".beforeKeyCount", extras.keyLengths(), kT.dim(3)));
            column = integer(
                    ".beforeQueries",
                    PointwiseMode.ADD,
                    column,
                    tokens(".beforeQueryCount", extras.queryLengths(), q.dim(2)));
        } else {
            long edge = band.before() + 1 - (bottom ? kT.dim(3) - q.dim(2) : 0);
            column = op(".beforeEdge", PointwiseMode.ADD, column, number(".beforeWindow", edge));
        }
        return hidden(".before", x, truth(".notBefore", PointwiseMode.CMP_GT, column, row));
    }

    private GraphTensor tokens(String part, @Nullable GraphTensor lengths, long all) {
        return lengths == null ? whole(part, all) : lengths;
    }

    private GraphTensor whole(String part, long value) {
        return graph.scalar(name + part, DataType.INT32, 4, value);
    }
}

package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.CallMemory;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * Checks of the arguments of attention.
 *
 * <p>Threading: the device's thread.
 */
final class AttentionChecks {
    /** The arguments' names, made beforehand so that calls make none. */
    private record Names(String scale, String scaleInverse, String amax) {
        static Names of(String tensor) {
            return new Names(
                    "scales." + tensor + ".scale", "scales." + tensor + ".scaleInverse", "scales." + tensor + ".amax");
        }
    }

    private static final Names SOFTMAX = Names.of("softmax");
    private static final Names OUTPUT = Names.of("output");
    private static final Names SCORE_GRADIENT = Names.of("scoreGradient");
    private static final Names QKV_GRADIENT = Names.of("qkvGradient");

    private AttentionChecks() {}

    static void forward(AttentionProblem problem, AttentionTensors tensors, CallMemory memory, Stream stream) {
        inputs(problem, tensors, memory, stream);
        output(stream, "output", tensors.output(), tensors.query().dtype(), tensors);
        statistics(problem, tensors, stream);
        memory.written("output", tensors.output());
        memory.written("statistics", tensors.statistics());
        offsetInputs(problem, tensors, memory, stream);
        scaledForward(tensors, memory, stream);
    }

    static void backward(AttentionProblem problem, AttentionTensors tensors, CallMemory memory, Stream stream) {
        inputs(problem, tensors, memory, stream);
        output(stream, "output", tensors.output(), tensors.query().dtype(), tensors);
        statistics(problem, tensors, stream);
        DType incoming = gradientType("outputGradient", tensors.outputGradient(), tensors);
        output(stream, "outputGradient", tensors.outputGradient(), incoming, tensors);
        Tensor dq = gradient(stream, "queryGradient", tensors.queryGradient(), tensors.query(), tensors);
        Tensor dk = gradient(stream, "keyGradient", tensors.keyGradient(), tensors.key(), tensors);
        Tensor dv = gradient(stream, "valueGradient", tensors.valueGradient(), tensors.value(), tensors);
        memory.read("output", tensors.output());
        memory.read("statistics", tensors.statistics());
        memory.read("outputGradient", tensors.outputGradient());
        QkvLayout layout = problem.layout();
        AttentionPlaces.check(layout, "queryGradient", dq, "keyGradient", dk, "valueGradient", dv);
        memory.written("queryGradient", dq, AttentionPlaces.queryBytes(layout, dq));
        memory.written("keyGradient", dk, AttentionPlaces.keyBytes(layout, dk));
        memory.written("valueGradient", dv, AttentionPlaces.valueBytes(layout, dv));
        offsetInputs(problem, tensors, memory, stream);
        offsetGradients(problem, tensors, memory, stream);
        scaledBackward(tensors, memory, stream);
    }

    /** Checks query, key, value, lengths and random state, and says that the call reads them. */
    private static void inputs(AttentionProblem problem, AttentionTensors tensors, CallMemory memory, Stream stream) {
        Checks.given("problem", problem);
        QkvLayout layout = problem.layout();
        Tensor query = heads(stream, "query", tensors.query(), layout.format(), tensors);
        Tensor key = heads(stream, "key", tensors.key(), layout.format(), tensors);
        Tensor value = heads(stream, "value", tensors.value(), layout.format(), tensors);
        keyLike(key, query, layout);
        valueLike(value, key, layout);
        long sequences = lengths(stream, "queryLengths", tensors.queryLengths());
        Checks.vector(stream, "keyLengths", tensors.keyLengths(), DType.INT32, sequences + 1);
        if (layout.format() == QkvFormat.THD) {
            longest("queryLengths", query, tensors.queryLength());
            longest("keyLengths", key, tensors.keyLength());
        } else {
            padded("query", query, "queryLengths", tensors.queryLength(), sequences, layout.format());
            padded("key", key, "keyLengths", tensors.keyLength(), sequences, layout.format());
        }
        AttentionPlaces.check(layout, "query", query, "key", key, "value", value);
        memory.clear();
        memory.read("query", query, AttentionPlaces.queryBytes(layout, query));
        memory.read("key", key, AttentionPlaces.keyBytes(layout, key));
        memory.read("value", value, AttentionPlaces.valueBytes(layout, value));
        memory.read("queryLengths", tensors.queryLengths());
        memory.read("keyLengths", tensors.keyLengths());
        starts("queryStarts", tensors.queryStarts(), layout, sequences, memory, stream);
        starts("keyStarts", tensors.keyStarts(), layout, sequences, memory, stream);
        randomness(problem, tensors, memory, stream);
    }

    private static void starts(
            String argument,
            @Nullable Tensor starts,
            QkvLayout layout,
            long sequences,
            CallMemory memory,
            Stream stream) {
        if (starts == null) {
            return;
        }
        if (layout.format() != QkvFormat.THD) {
            throw new IllegalArgumentException(
                    argument + ": expected none, for " + layout + " is not packed, got " + Checks.describe(starts));
        }
        Checks.vector(stream, argument, starts, DType.INT32, sequences + 1);
        memory.read(argument, starts);
    }

    private static void randomness(
            AttentionProblem problem, AttentionTensors tensors, CallMemory memory, Stream stream) {
        Tensor state = tensors.rngState();
        if (state != null) {
            Checks.vector(stream, "rngState", state, DType.INT64, 2);
            memory.read("rngState", state);
        } else if (problem.draws()) {
            throw new IllegalArgumentException(
                    "rngState: expected INT64[2], for the problem drops weights with probability " + problem.dropout()
                            + ", got none");
        }
    }

    /** Checks a tensor of heads over tokens. */
    private static Tensor heads(
            Stream stream, String argument, Tensor tensor, QkvFormat format, AttentionTensors tensors) {
        typed(stream, argument, tensor, tensors.scales());
        if (tensor.rank() != format.rank()) {
            throw new IllegalArgumentException(
                    argument + ": expected " + format.shape() + ", got " + Checks.describe(tensor));
        }
        return tensor;
    }

    private static void keyLike(Tensor key, Tensor query, QkvLayout layout) {
        int head = query.rank() - 2;
        long heads = query.size(head);
        if (key.dtype() != query.dtype()
                || key.size(head + 1) != query.size(head + 1)
                || key.size(head) == 0 != (heads == 0)
                || (heads != 0 && heads % key.size(head) != 0)) {
            throw new IllegalArgumentException("key: expected heads of " + query.size(head + 1) + " " + query.dtype()
                    + ", in a number that divides the query's " + heads + ", got " + Checks.describe(key));
        }
        if (layout.packing() == QkvLayout.Packing.ALL && !sameShape(key, query, query.rank())) {
            throw new IllegalArgumentException("key: expected " + Checks.describe(query) + ", for " + layout
                    + " is one buffer, got " + Checks.describe(key));
        }
    }

    private static void valueLike(Tensor value, Tensor key, QkvLayout layout) {
        boolean alone = layout.packing() == QkvLayout.Packing.NONE;
        if (value.dtype() != key.dtype() || !sameShape(value, key, key.rank() - (alone ? 1 : 0))) {
            throw new IllegalArgumentException("value: expected " + Checks.describe(key)
                    + (alone ? ", the last size aside" : "") + ", got " + Checks.describe(value));
        }
    }

    private static boolean sameShape(Tensor tensor, Tensor model, int sizes) {
        for (int i = 0; i < sizes; i++) {
            if (tensor.size(i) != model.size(i)) {
                return false;
            }
        }
        return true;
    }

    /** Checks a tensor like the output: the query's shape with the value's heads. */
    private static void output(Stream stream, String argument, Tensor tensor, DType dtype, AttentionTensors tensors) {
        Tensor query = tensors.query();
        int last = query.rank() - 1;
        long dim = tensors.value().size(last);
        Checks.on(stream, argument, tensor);
        if (tensor.rank() != query.rank()
                || tensor.dtype() != dtype
                || !sameShape(tensor, query, last)
                || tensor.size(last) != dim) {
            throw new IllegalArgumentException(argument + ": expected " + Checks.describe(query)
                    + (dim == query.size(last) ? "" : " with heads of " + dim) + ", got " + Checks.describe(tensor));
        }
    }

    private static void statistics(AttentionProblem problem, AttentionTensors tensors, Stream stream) {
        Tensor statistics = Checks.on(stream, "statistics", tensors.statistics());
        Tensor query = tensors.query();
        boolean packed = problem.layout().format() == QkvFormat.THD;
        long heads = query.size(query.rank() - 2);
        long first = packed ? query.size(0) : tensors.sequences();
        boolean fits = statistics.dtype() == DType.FLOAT32
                && statistics.rank() == (packed ? 3 : 4)
                && statistics.size(0) == first
                && statistics.size(1) == heads
                && (packed || statistics.size(2) == tensors.queryLength())
                && statistics.size(statistics.rank() - 1) == 1;
        if (!fits) {
            String length = packed ? "" : tensors.queryLength() + ", ";
            throw new IllegalArgumentException("statistics: expected FLOAT32[" + first + ", " + heads + ", " + length
                    + "1], got " + Checks.describe(statistics));
        }
    }

    private static long lengths(Stream stream, String argument, Tensor cumulative) {
        Checks.on(stream, argument, cumulative);
        if (cumulative.rank() != 1 || cumulative.dtype() != DType.INT32 || cumulative.size(0) == 0) {
            throw new IllegalArgumentException(
                    argument + ": expected INT32[B + 1], got " + Checks.describe(cumulative));
        }
        return cumulative.size(0) - 1;
    }

    /** Checks a bound on lengths. It may exceed the number of tokens: callers round it up, since kernels are chosen by it. */
    private static void longest(String argument, Tensor tensor, long longest) {
        long least = tensor.size(0) == 0 ? 0 : 1;
        if (longest < least || longest > Integer.MAX_VALUE) {
            throw new IllegalArgumentException(argument + ": expected a longest length from " + least + " to "
                    + Integer.MAX_VALUE + ", got " + longest);
        }
    }

    private static void padded(
            String argument, Tensor tensor, String lengthsArgument, long length, long sequences, QkvFormat format) {
        int batch = format == QkvFormat.BSHD ? 0 : 1;
        if (tensor.size(batch) != sequences) {
            throw new IllegalArgumentException(argument + ": expected " + format.shape() + " with B " + sequences
                    + ", as many as there are lengths, got " + Checks.describe(tensor));
        }
        if (tensor.size(1 - batch) != length || length > Integer.MAX_VALUE) {
            throw new IllegalArgumentException(lengthsArgument + ": expected the padded length of the " + argument
                    + ", " + tensor.size(1 - batch) + ", got " + length);
        }
    }

    /** Checks the bias and the offset of the softmax, which forward and backward read after the other tensors, and that it does not overlap what {@code memory} has recorded as written. */
    private static void offsetInputs(
            AttentionProblem problem, AttentionTensors tensors, CallMemory memory, Stream stream) {
        Tensor bias = wanted("bias", tensors.bias(), problem.biasType().isTensor(), problem);
        if (bias != null) {
            bias(bias, tensors, stream);
            memory.readApart("bias", bias);
        }
        Tensor offset = offset("softmaxOffset", tensors.softmaxOffset(), problem, tensors, stream);
        if (offset != null) {
            memory.readApart("softmaxOffset", offset);
        }
    }

    /** Checks the gradients of both, which backward writes. */
    private static void offsetGradients(
            AttentionProblem problem, AttentionTensors tensors, CallMemory memory, Stream stream) {
        Tensor gradient = wanted(
                "biasGradient", tensors.biasGradient(), problem.biasType().isTensor(), problem);
        if (gradient != null) {
            Checks.like(stream, "biasGradient", gradient, Checks.given("bias", tensors.bias()));
            Checks.aligned("biasGradient", gradient);
            memory.written("biasGradient", gradient);
        }
        Tensor offset = offset("softmaxOffsetGradient", tensors.softmaxOffsetGradient(), problem, tensors, stream);
        if (offset != null) {
            memory.written("softmaxOffsetGradient", offset);
        }
    }

    private static @Nullable Tensor offset(
            String argument,
            @Nullable Tensor tensor,
            AttentionProblem problem,
            AttentionTensors tensors,
            Stream stream) {
        Tensor offset = wanted(argument, tensor, problem.softmaxType() != SoftmaxType.VANILLA, problem);
        if (offset != null) {
            Checks.vector(stream, argument, offset, DType.FLOAT32, heads(tensors));
            Checks.aligned(argument, offset);
        }
        return offset;
    }

    /** Returns the tensor if the problem requires one, null if it requires none. */
    private static @Nullable Tensor wanted(
            String argument, @Nullable Tensor tensor, boolean wanted, AttentionProblem problem) {
        if (wanted == (tensor != null)) {
            return tensor;
        }
        String reason =
                ", for the problem has " + problem.biasType() + " and a softmax that is " + problem.softmaxType();
        if (tensor == null) {
            throw new IllegalStateException(
                    argument + ": expected a tensor" + reason + ", got none; call " + argument + "(...) before");
        }
        throw new IllegalArgumentException(argument + ": expected none" + reason + ", got " + Checks.describe(tensor));
    }

    private static void bias(Tensor bias, AttentionTensors tensors, Stream stream) {
        Checks.on(stream, "bias", bias);
        long sequences = tensors.sequences();
        long heads = heads(tensors);
        boolean fits = bias.dtype() == tensors.query().dtype()
                && bias.rank() == 4
                && (bias.size(0) == 1 || bias.size(0) == sequences)
                && (bias.size(1) == 1 || bias.size(1) == heads)
                && bias.size(2) == tensors.queryLength()
                && bias.size(3) == tensors.keyLength();
        if (!fits) {
            throw new IllegalArgumentException("bias: expected "
                    + tensors.query().dtype() + "[1 or " + sequences
                    + ", 1 or " + heads + ", " + tensors.queryLength() + ", " + tensors.keyLength() + "], got "
                    + Checks.describe(bias));
        }
        Checks.aligned("bias", bias);
    }

    private static long heads(AttentionTensors tensors) {
        Tensor query = tensors.query();
        return query.size(query.rank() - 2);
    }

    /** Checks the type of query, key or value: floating-point, or E4M3 where there are scales. */
    private static void typed(Stream stream, String argument, Tensor tensor, @Nullable AttentionScales scales) {
        if (scales != null) {
            Checks.typed(stream, argument, tensor, DType.FLOAT8_E4M3);
        } else if (Checks.on(stream, argument, tensor).dtype().isFloat8()) {
            throw new IllegalArgumentException(argument + ": expected scales for " + Checks.describe(tensor)
                    + ", got none; call scales(...) before");
        } else {
            Checks.floats(stream, argument, tensor);
        }
    }

    /** Returns the type that {@code tensor} must have: the query's, or, for a gradient in eight bits, its own. */
    private static DType gradientType(String argument, Tensor tensor, AttentionTensors tensors) {
        if (tensors.scales() == null) {
            return tensors.query().dtype();
        }
        if (!tensor.dtype().isFloat8()) {
            throw new IllegalArgumentException(argument
                    + ": expected FLOAT8_E5M2 or FLOAT8_E4M3, for the query is in eight bits, got "
                    + Checks.describe(tensor));
        }
        return tensor.dtype();
    }

    /** Checks a gradient of query, key or value, of the shape of {@code model}. */
    private static Tensor gradient(
            Stream stream, String argument, Tensor tensor, Tensor model, AttentionTensors tensors) {
        if (tensors.scales() == null) {
            return Checks.like(stream, argument, tensor, model);
        }
        Checks.shaped(stream, argument, tensor, model);
        gradientType(argument, tensor, tensors);
        return Checks.typed(stream, argument, tensor, tensors.queryGradient().dtype());
    }

    /** Checks the scales and amaxes of a forward call. */
    private static void scaledForward(AttentionTensors tensors, CallMemory memory, Stream stream) {
        AttentionScales scales = tensors.scales();
        if (scales != null) {
            read("scales.qkv.scaleInverse", scales.qkv().scaleInverse(), memory, stream);
            cells(SOFTMAX, scales.softmax(), memory, stream);
            cells(OUTPUT, scales.output(), memory, stream);
        }
    }

    /** Checks the scales and amaxes of a backward call. */
    private static void scaledBackward(AttentionTensors tensors, CallMemory memory, Stream stream) {
        AttentionScales scales = tensors.scales();
        if (scales == null) {
            return;
        }
        read("scales.qkv.scaleInverse", scales.qkv().scaleInverse(), memory, stream);
        read("scales.softmax.scale", scales.softmax().scale(), memory, stream);
        read("scales.softmax.scaleInverse", scales.softmax().scaleInverse(), memory, stream);
        read("scales.output.scaleInverse", scales.output().scaleInverse(), memory, stream);
        TensorScale incoming = present("outputGradient", scales.outputGradient());
        read("scales.outputGradient.scaleInverse", incoming.scaleInverse(), memory, stream);
        cells(SCORE_GRADIENT, present("scoreGradient", scales.scoreGradient()), memory, stream);
        cells(QKV_GRADIENT, present("qkvGradient", scales.qkvGradient()), memory, stream);
    }

    private static TensorScale present(String name, @Nullable TensorScale scale) {
        if (scale == null) {
            throw new IllegalArgumentException("scales: expected a scale of the " + name
                    + ", which backward needs, got none; make new AttentionScales(...) with all six");
        }
        return scale;
    }

    private static void cells(Names names, TensorScale scale, CallMemory memory, Stream stream) {
        read(names.scale, scale.scale(), memory, stream);
        read(names.scaleInverse, scale.scaleInverse(), memory, stream);
        Tensor amax = scale.amax();
        Checks.vector(stream, names.amax, amax, DType.FLOAT32, 1);
        memory.written(names.amax, amax);
    }

    private static void read(String argument, Tensor cell, CallMemory memory, Stream stream) {
        Checks.vector(stream, argument, cell, DType.FLOAT32, 1);
        memory.readApart(argument, cell);
    }
}

package dev.chagres.internal.ranks;

import dev.chagres.Stream;
import dev.chagres.nccl.Communicator;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import java.nio.charset.StandardCharsets;
import java.util.function.LongFunction;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.zip.CRC32C;

/**
 * Checks that ranks train the same parameters.
 *
 * <p>Threading: the device's thread.
 */
public final class SameParameters {
    /** The numbers of each rank: checksum, elements, setting, context-parallel rank and size, tensor-parallel rank, seed. */
    private static final int NUMBERS = 7;

    private static final int CONTEXT_RANK = 3;
    private static final int TENSOR_RANK = 5;
    private static final int SEED = 6;

    private SameParameters() {}

    /**
     * Compares a checksum of all parameters' descriptions, the {@code seed} of their first weights, and the {@code value} of a {@code
     * setting}: otherwise sums of gradients would be wrong, or hang. If layers are split, checks that the ranks have the same part of them;
     * if tokens are split, that the ranks of all parts take part.
     */
    public static void ensure(Parameters parameters, Communicator communicator, long seed, String setting, long value) {
        ensure(parameters, communicator, seed, setting, value, Long::toString);
    }

    /** The same for an enum setting, whose constants the error names. */
    public static void ensure(
            Parameters parameters, Communicator communicator, long seed, String setting, Enum<?> value) {
        Enum<?>[] constants = value.getDeclaringClass().getEnumConstants();
        ensure(parameters, communicator, seed, setting, value.ordinal(), number -> constants[(int) number].toString());
    }

    private static void ensure(
            Parameters parameters,
            Communicator communicator,
            long seed,
            String setting,
            long value,
            LongFunction<String> name) {
        Stream stream = parameters.scope().stream();
        CRC32C checksum = new CRC32C();
        for (Parameter parameter : parameters.all()) {
            if (parameter.isQuantizedOnly()) {
                throw new IllegalArgumentException(
                        "parameters: expected weights in FP32 or 16 bits, which ranks can exchange, got "
                                + parameter.name()
                                + " kept QUANTIZED_ONLY; allocate with WeightStorage.QUANTIZED or MODEL_TYPE");
            }
            String text = parameter + " " + parameter.unreadWeight().dtype() + " " + parameter.isFrozen();
            checksum.update(text.getBytes(StandardCharsets.UTF_8));
        }
        ContextParallel context = parameters.access().contextParallel();
        long[] values = AllGatherLongs.ofAll(
                communicator,
                stream,
                checksum.getValue(),
                parameters.count(),
                value,
                context.rank(),
                context.size(),
                parameters.tensorParallel().rank(),
                seed);
        for (int rank = 1; rank < communicator.ranks(); rank++) {
            int at = NUMBERS * rank;
            if (values[at] != values[0] || values[at + 1] != values[1]) {
                throw new IllegalStateException("parameters: expected the same on all ranks, got others on rank " + rank
                        + " (" + values[at + 1] + " elements) than on rank 0 (" + values[1]
                        + "); build the same plan, with the same types and the same parameters frozen, on each");
            }
            requireSame("seed", values[at + SEED], values[SEED], rank, Long::toString, "");
            requireSame(setting, values[at + 2], values[2], rank, name, "");
        }
        ensureSamePart(values, parameters.tensorParallel());
        ensureAllParts(values);
    }

    private static void requireSame(
            String what, long own, long first, int rank, LongFunction<String> name, String mend) {
        if (own != first) {
            throw new IllegalStateException(what + ": expected the same on all ranks, got " + name.apply(own)
                    + " on rank " + rank + " and " + name.apply(first) + " on rank 0" + mend);
        }
    }

    /** Compares, before there are parameters, a setting that decides which collectives ranks call. */
    public static void ensureSame(Communicator communicator, String setting, Enum<?> value) {
        Enum<?>[] constants = value.getDeclaringClass().getEnumConstants();
        ensureSame(communicator, setting, value.ordinal(), number -> constants[(int) number].toString(), "");
    }

    /** Compares a number that must be the same on all ranks before they go on; {@code mend} is the error's advice. */
    public static void ensureSame(
            Communicator communicator, String what, long value, LongFunction<String> name, String mend) {
        long[] values = AllGatherLongs.ofAll(communicator, communicator.device().stream(), value);
        for (int rank = 1; rank < values.length; rank++) {
            requireSame(what, values[rank], values[0], rank, name, mend);
        }
    }

    private static void ensureSamePart(long[] values, TensorParallel tensor) {
        for (int rank = 1; rank < values.length / NUMBERS; rank++) {
            long part = values[NUMBERS * rank + TENSOR_RANK];
            if (part != values[TENSOR_RANK]) {
                throw new IllegalStateException("communicator: expected ranks with the same shard of layers, which "
                        + tensor.size() + " tensor-parallel ranks split, got tensor-parallel rank " + part + " on rank "
                        + rank + " and " + values[TENSOR_RANK]
                        + " on rank 0; pass the communicator along the other dimensions of the mesh");
            }
        }
    }

    /** Each rank computes a term of a gradient; a sum with a missing or repeated term would be wrong. */
    private static void ensureAllParts(long[] values) {
        long size = values[CONTEXT_RANK + 1];
        int ranks = values.length / NUMBERS;
        int[] present = new int[Math.toIntExact(size)];
        boolean same = true;
        for (int rank = 0; rank < ranks; rank++) {
            same &= values[NUMBERS * rank + CONTEXT_RANK + 1] == size;
            if (same) {
                present[Math.toIntExact(values[NUMBERS * rank + CONTEXT_RANK])]++;
            }
        }
        for (int part : present) {
            same &= part * size == ranks;
        }
        if (!same) {
            throw new IllegalStateException("communicator: expected equally many of each of the " + size
                    + " context-parallel ranks, over which gradients are summed, got "
                    + IntStream.range(0, ranks)
                            .mapToObj(rank -> "rank " + values[NUMBERS * rank + CONTEXT_RANK] + " of "
                                    + values[NUMBERS * rank + CONTEXT_RANK + 1])
                            .collect(Collectors.joining(", "))
                    + "; give the communicator of all ranks, such as mesh.world()");
        }
    }
}

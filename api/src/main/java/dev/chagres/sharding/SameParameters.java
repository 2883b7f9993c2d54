package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.model.Parameter;
import dev.chagres.model.Parameters;
import dev.chagres.nccl.Communicator;
import java.nio.charset.StandardCharsets;
import java.util.zip.CRC32C;

/**
 * Checks that ranks train the same parameters.
 *
 * <p>Threading: the device's thread.
 */
final class SameParameters {
    private SameParameters() {}

    /**
     * Compares a checksum of all parameters' descriptions, and the {@code value} of a {@code setting}: a sum over other gradients would
     * be nonsense, or hang.
     */
    static void ensure(Parameters parameters, Communicator communicator, long seed, String setting, long value) {
        Stream stream = parameters.scope().stream();
        CRC32C checksum = new CRC32C();
        checksum.update(Long.toString(seed).getBytes(StandardCharsets.UTF_8));
        for (Parameter parameter : parameters.all()) {
            String text = parameter + " " + parameter.unreadWeight().dtype() + " " + parameter.isFrozen();
            checksum.update(text.getBytes(StandardCharsets.UTF_8));
        }
        try (Scope scope = stream.device().openScope(stream)) {
            Tensor own = scope.tensor(DType.INT64, 3);
            Tensor all = scope.tensor(DType.INT64, 3L * communicator.ranks());
            own.set(stream, checksum.getValue(), parameters.count(), value);
            communicator.allGather(own, all, stream);
            communicator.synchronize(stream);
            long[] values = all.toLongs(stream);
            for (int rank = 1; rank < communicator.ranks(); rank++) {
                if (values[3 * rank] != values[0] || values[3 * rank + 1] != values[1]) {
                    throw new IllegalStateException(
                            "parameters: expected the same on all ranks, got others on rank " + rank
                                    + " (" + values[3 * rank + 1] + " elements) than on rank 0 (" + values[1]
                                    + "); build the same plan, with the same types and the same parameters frozen, on each");
                }
                if (values[3 * rank + 2] != values[2]) {
                    throw new IllegalStateException(setting + ": expected the same on all ranks, got "
                            + values[3 * rank + 2] + " on rank " + rank + " and " + values[2] + " on rank 0");
                }
            }
        }
    }
}

package dev.chagres.sharding;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.ranks.SameParameters;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.recipe.AmaxReduction;
import dev.chagres.recipe.Quantizers;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.CRC32C;

/**
 * The quantizers whose scales are reduced over all ranks: {@code amax = max over ranks of amax} at the end of each step.
 *
 * <p>Threading: the device's thread.
 */
final class AmaxOverRanks implements AmaxReduction {
    private final Parameters parameters;
    private final Communicator communicator;
    private final ByteCounts bytes;
    private final Stream stream;
    private final List<Quantizers> reduced = new ArrayList<>();

    AmaxOverRanks(Parameters parameters, Communicator communicator, ByteCounts bytes) {
        this.parameters = parameters;
        this.communicator = communicator;
        this.bytes = bytes;
        stream = parameters.scope().stream();
    }

    /** Reduces the amaxes of {@code quantizers} from now on. */
    void add(Quantizers quantizers) {
        if (reduced.contains(quantizers)) {
            throw new IllegalStateException(
                    "reduceAmax: expected quantizers that are not reduced yet, got " + quantizers);
        }
        ensureSame(quantizers);
        quantizers.reduceAmax(this);
        reduced.add(quantizers);
    }

    /** Stops reducing the amaxes of {@code quantizers}. */
    void remove(Quantizers quantizers) {
        quantizers.reduceAmax(null);
        reduced.remove(quantizers);
    }

    /** A rank with another recipe would cast its shard of weights with scales that differ from those that the others dequantize it with. */
    private void ensureSame(Quantizers quantizers) {
        CRC32C checksum = new CRC32C();
        String places = String.join(" ", quantizers.state().tensors().keySet());
        checksum.update((quantizers.recipe() + " " + places).getBytes(StandardCharsets.UTF_8));
        SameParameters.ensureSame(
                communicator,
                "quantizers: recipe and places, by their checksum",
                checksum.getValue(),
                Long::toHexString,
                "; give Quantizers.allocate the same recipe and groups on each, here " + quantizers.recipe());
    }

    /** Reduces over these ranks in one call, then over tensor-parallel ranks, and over those of a pipeline. */
    @Override
    public void max(List<Tensor> amaxes) {
        Communicator.group(() -> {
            for (int i = 0; i < amaxes.size(); i++) {
                Tensor amax = amaxes.get(i);
                bytes.allReduce(amax);
                communicator.allReduce(amax, amax, Reduction.MAX, stream);
            }
        });
        parameters.tensorParallel().max(amaxes, stream);
        parameters.access().maxOverStages(amaxes);
    }

    /** Returns those quantizers that are open. */
    List<Quantizers> open() {
        return reduced.stream().filter(Quantizers::isOpen).toList();
    }

    /** Returns the states of those quantizers that are open. */
    List<State> states() {
        return open().stream().map(Quantizers::state).toList();
    }

    /** All ranks have enqueued work behind the last step's reduction, and it is done: the reduction has succeeded. */
    void confirm() {
        for (int i = 0; i < reduced.size(); i++) {
            Quantizers each = reduced.get(i);
            if (each.isOpen()) {
                each.confirmReduction();
            }
        }
    }

    /** Enqueues scales of this rank's own amaxes in place of those whose reduction may have failed. */
    void discard() {
        open().forEach(Quantizers::discardReduction);
    }

    /** Stops reducing: the quantizers are those of their own rank again. */
    void end() {
        open().forEach(quantizers -> quantizers.reduceAmax(null));
    }
}

package dev.chagres.parallel;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.nccl.Communicator;
import dev.chagres.te.MultiTensor;
import dev.chagres.te.TensorLists;

/**
 * For sharding: the norm of sharded gradients, which is the norm of the vector of the ranks' norms.
 *
 * <p>Threading: the device's thread.
 */
public final class NormOverRanks implements NormReduction, AutoCloseable {
    private final Communicator communicator;
    private final Stream stream;
    private final Tensor norms;
    private final Tensor partials;
    private final TensorLists lists;

    /** Allocates a little memory from {@code scope}, for the ranks of {@code communicator}. */
    public NormOverRanks(Scope scope, Communicator communicator) {
        this.communicator = Checks.given("communicator", communicator);
        stream = Checks.given("scope", scope).stream();
        norms = scope.tensor(DType.FLOAT32, communicator.ranks());
        partials = scope.tensor(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
        lists = TensorLists.ofRange(scope, 0, norms.count(), norms);
    }

    @Override
    public void normOverRanks(Tensor norm, Tensor skip) {
        communicator.allGather(norm, norms, stream);
        MultiTensor.l2norm(skip, lists, partials, norm, stream);
    }

    /** Frees lists of the host; the device memory is freed with its scope. A second call does nothing. */
    @Override
    public void close() {
        lists.close();
    }
}

package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.parameter.Parameter;
import java.util.ArrayList;
import java.util.List;

/**
 * Allocates all weights of a model that exist only in eight bits, as one vector, and casts their initial values one after another.
 *
 * <p>Threading: the device's thread.
 */
final class Fp8PrimaryWeights {
    /** Each weight is aligned to a multiple of this many bytes, so that cuBLASLt offers all of its kernels. */
    private static final long ALIGNMENT = 256;

    private final Scope scope;
    private final List<Quantizer> quantizers = new ArrayList<>();
    private final List<Parameter> weights = new ArrayList<>();

    Fp8PrimaryWeights(Scope scope) {
        this.scope = scope;
    }

    void add(Quantizer quantizer) {
        quantizers.add(quantizer);
        weights.add(quantizer.site().weight());
    }

    /** Returns the weights, in the order in which their quantizers were added. The parameters know where they lie. */
    List<Fp8PrimaryWeight> make() {
        List<Fp8PrimaryWeight> made = new ArrayList<>();
        if (weights.isEmpty()) {
            return made;
        }
        long[] offsets = new long[weights.size() + 1];
        for (int i = 0; i < weights.size(); i++) {
            long count = weights.get(i).shape().count();
            offsets[i + 1] = offsets[i] + (count + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        }
        Tensor all = scope.tensor(quantizers.getFirst().dtype(), offsets[weights.size()]);
        try (Scope rooms = scope.device().openScope(scope.stream())) {
            for (int i = 0; i < weights.size(); i++) {
                Shape shape = weights.get(i).shape();
                Fp8PrimaryWeight weight = new Fp8PrimaryWeight(
                        quantizers.get(i), scope.view(all, offsets[i], shape.size(0), shape.size(1)), scope);
                try (Scope room = rooms.open()) {
                    Tensor first = room.tensor(DType.FLOAT32, shape.size(0), shape.size(1));
                    weights.get(i).owner().drawFirst(weights.get(i), first);
                    weight.cast(first, room);
                }
                made.add(weight);
            }
        }
        made.forEach(Fp8PrimaryWeight::settle);
        return made;
    }
}

package dev.chagres.optim;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.te.MultiTensor;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.TensorLists;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * TE's kernel over the FP32 weights or masters, a call for each rate and weight decay; then a kernel that rounds masters.
 *
 * <p>Threading: the device's thread.
 */
final class MultiTensorAdam implements AdamUpdate {
    /** What one call has in common. */
    private record Alike(int group, float weightDecay) {}

    private record Call(Alike alike, TensorLists lists, Tensor rate) {}

    private final AdamW.Config config;
    private final Memory memory;
    private final MasterWeights masters;
    private final List<Call> calls = new ArrayList<>();

    MultiTensorAdam(AdamW.Config config, List<UpdateRange> ranges, MasterWeights masters, Memory memory) {
        this.config = config;
        this.memory = memory;
        this.masters = masters;
        Map<Alike, List<UpdateRange>> byCall = new LinkedHashMap<>();
        for (UpdateRange range : ranges) {
            byCall.computeIfAbsent(new Alike(range.group(), range.weightDecay()), alike -> new ArrayList<>())
                    .add(range);
        }
        byCall.forEach((alike, members) ->
                calls.add(new Call(alike, lists(members), memory.numbers().rate(alike.group))));
    }

    /** Returns gradients, FLOAT32 weights, mean and square of the ranges. */
    private TensorLists lists(List<UpdateRange> ranges) {
        Scope scope = memory.scope();
        Tensor[][] views = new Tensor[4][ranges.size()];
        for (int i = 0; i < ranges.size(); i++) {
            UpdateRange range = ranges.get(i);
            long offset = range.gradientOffset();
            Tensor master = masters.of(range);
            views[0][i] = scope.view(memory.gradients(), offset, range.count());
            views[1][i] = master != null ? master : scope.view(range.weights(), range.weightOffset(), range.count());
            views[2][i] = scope.view(memory.mean(), offset, range.count());
            views[3][i] = scope.view(memory.square(), offset, range.count());
        }
        return TensorLists.of(views);
    }

    @Override
    public void run(Tensor gradientScale, Tensor skip) {
        for (int i = 0; i < calls.size(); i++) {
            Call call = calls.get(i);
            MultiTensor.adamCapturable(
                    skip,
                    call.lists,
                    call.rate,
                    config.beta1(),
                    config.beta2(),
                    config.epsilon(),
                    memory.numbers().step(),
                    config.decayMode(),
                    BiasCorrection.YES,
                    call.alike.weightDecay,
                    gradientScale,
                    memory.scope().stream());
        }
        masters.round();
    }

    @Override
    public String explain() {
        return "nvte_multi_tensor_adam_capturable_cuda over FLOAT32 weights or masters, " + calls.size()
                + (calls.size() == 1 ? " call" : " calls") + " for as many rates and decays; ops_cast rounds masters."
                + " Not nvte_multi_tensor_adam_capturable_master_cuda: it wants gradients of the weights' type, and these"
                + " are FLOAT32";
    }

    @Override
    public void close() {
        calls.forEach(call -> call.lists.close());
    }
}

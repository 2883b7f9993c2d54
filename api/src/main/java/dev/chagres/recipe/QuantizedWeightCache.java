package dev.chagres.recipe;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterShard;
import dev.chagres.parameter.Parameters;
import dev.chagres.recipe.QuantizedWeights.WeightCopies;
import dev.chagres.recipe.Recipe.Product;
import org.jspecify.annotations.Nullable;

/**
 * A weight in eight bits, rowwise and columnwise, cast at its first use after it changed.
 *
 * <p>Threading: the device's thread.
 */
final class QuantizedWeightCache implements WeightCopies {
    private static final long NEVER = -1;

    private final Quantizer quantizer;
    private final Parameter weight;
    private final Scope scope;
    private @Nullable QuantizedTensor copies;
    private @Nullable Parameters owner;
    private int issue;
    private long step = NEVER;
    private int version;
    private int scales;
    private AmaxRecording recorded = AmaxRecording.OFF;
    /** The capture that casts the weight; null if it was cast immediately. */
    private @Nullable Capture castIn;

    private final Runnable forget = this::forget;

    QuantizedWeightCache(Quantizer quantizer, Parameter weight, Scope scope) {
        this.quantizer = quantizer;
        this.weight = weight;
        this.scope = scope;
        ParameterShard shard = weight.owner().access().shard();
        if (shard == null || shard.weights() == null) {
            allocate();
        } // Else ranks may gather the weight in eight bits, and there is none here.
    }

    private QuantizedTensor allocate() {
        long rows = weight.shape().size(0);
        long columns = weight.shape().size(1);
        QuantizedTensor made =
                quantizer.empty(scope, rows, columns).allocateRowwise(scope).allocateColumnwise(scope);
        copies = made;
        return made;
    }

    @Override
    public QuantizedTensor get(Product product, AmaxRecording recording, Scope temporary, Stream stream) {
        QuantizedTensor copies = this.copies == null ? allocate() : this.copies;
        // A tied weight belongs to other parameters, which count its changes.
        Parameters present = weight.owner();
        int presentIssue = Inside.issue(weight.weight());
        // Scales change with steps of the recipe's parameters, which need not be the owner.
        boolean stale = owner != present
                || issue != presentIssue
                || step != present.step()
                || version != present.version()
                || scales != quantizer.scalesVersion();
        // A graph's casts exist only at its launches, and a graph casts the weights that it reads, since they change
        // between launches.
        Capture capture = Inside.capture(stream);
        // A weight that evaluation has cast was not recorded: the first training pass of the step casts it again.
        if (stale || capture != castIn || (recording == AmaxRecording.ON && recorded == AmaxRecording.OFF)) {
            // Scale and amax are only for the cast: products do not read them.
            QuantizedTensor target = quantizer
                    .empty(temporary, copies.rows(), copies.columns())
                    .rowwise(present(copies.rowwise()), present(copies.rowwiseScaleInverse()))
                    .columnwise(present(copies.columnwise()), present(copies.columnwiseScaleInverse()));
            quantizer.enqueueCast(weight.weight(), target, null, recording, temporary, stream);
            owner = present;
            issue = presentIssue;
            step = present.step();
            version = present.version();
            scales = quantizer.scalesVersion();
            recorded = recording;
            castIn = capture;
            if (capture != null) {
                capture.onRecordedOrFailure(forget);
            }
        }
        return copies;
    }

    private static Tensor present(@Nullable Tensor copy) {
        return Checks.given("copy", copy);
    }

    @Override
    public boolean hasSource() {
        return true;
    }

    @Override
    public void forget() {
        step = NEVER;
        castIn = null;
    }
}

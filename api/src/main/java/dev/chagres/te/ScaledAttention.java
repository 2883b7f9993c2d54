package dev.chagres.te;

import static dev.chagres.bindings.te.TransformerEngine.*;

import dev.chagres.internal.Checks;
import dev.chagres.internal.memory.DeviceState;

/**
 * The handles of attention's tensors in eight bits, one set per device; each call describes them anew.
 *
 * <p>Threading: the device's thread.
 */
final class ScaledAttention implements AutoCloseable {
    private final ScaledTensor query;
    private final ScaledTensor key;
    private final ScaledTensor value;
    private final ScaledTensor softmax;
    private final ScaledTensor output;
    private final ScaledTensor outputGradient;
    private final ScaledTensor scoreGradient;
    private final ScaledTensor queryGradient;
    private final ScaledTensor keyGradient;
    private final ScaledTensor valueGradient;

    ScaledAttention(DeviceState device) {
        query = new ScaledTensor(device);
        key = new ScaledTensor(device);
        value = new ScaledTensor(device);
        softmax = new ScaledTensor(device);
        output = new ScaledTensor(device);
        outputGradient = new ScaledTensor(device);
        scoreGradient = new ScaledTensor(device);
        queryGradient = new ScaledTensor(device);
        keyGradient = new ScaledTensor(device);
        valueGradient = new ScaledTensor(device);
    }

    /** Sets the tensors of a forward call. */
    void writeForward(AttributeWriter writer, AttentionTensors tensors, AttentionScales scales) {
        writer.handle(kNVTEFusedAttnFwdParamsQ(), query.of(tensors.query(), scales.qkv()));
        writer.handle(kNVTEFusedAttnFwdParamsK(), key.of(tensors.key(), scales.qkv()));
        writer.handle(kNVTEFusedAttnFwdParamsV(), value.of(tensors.value(), scales.qkv()));
        writer.handle(
                kNVTEFusedAttnFwdParamsS(), softmax.ofNothing(tensors.query().dtype(), scales.softmax()));
        writer.handle(kNVTEFusedAttnFwdParamsO(), output.of(tensors.output(), scales.output()));
    }

    /** Sets the tensors of a backward call. */
    void writeBackward(AttributeWriter writer, AttentionTensors tensors, AttentionScales scales) {
        TensorScale incoming = Checks.given("outputGradient", scales.outputGradient());
        TensorScale scores = Checks.given("scoreGradient", scales.scoreGradient());
        TensorScale outgoing = Checks.given("qkvGradient", scales.qkvGradient());
        writer.handle(kNVTEFusedAttnBwdParamsQ(), query.of(tensors.query(), scales.qkv()));
        writer.handle(kNVTEFusedAttnBwdParamsK(), key.of(tensors.key(), scales.qkv()));
        writer.handle(kNVTEFusedAttnBwdParamsV(), value.of(tensors.value(), scales.qkv()));
        writer.handle(kNVTEFusedAttnBwdParamsO(), output.of(tensors.output(), scales.output()));
        writer.handle(kNVTEFusedAttnBwdParamsDO(), outputGradient.of(tensors.outputGradient(), incoming));
        writer.handle(
                kNVTEFusedAttnBwdParamsS(), softmax.ofNothing(tensors.query().dtype(), scales.softmax()));
        writer.handle(
                kNVTEFusedAttnBwdParamsDP(),
                scoreGradient.ofNothing(tensors.outputGradient().dtype(), scores));
        writer.handle(kNVTEFusedAttnBwdParamsDQ(), queryGradient.of(tensors.queryGradient(), outgoing));
        writer.handle(kNVTEFusedAttnBwdParamsDK(), keyGradient.of(tensors.keyGradient(), outgoing));
        writer.handle(kNVTEFusedAttnBwdParamsDV(), valueGradient.of(tensors.valueGradient(), outgoing));
    }

    @Override
    public void close() {
        query.close();
        key.close();
        value.close();
        softmax.close();
        output.close();
        outputGradient.close();
        scoreGradient.close();
        queryGradient.close();
        keyGradient.close();
        valueGradient.close();
    }
}

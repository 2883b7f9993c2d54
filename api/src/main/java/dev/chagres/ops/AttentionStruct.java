package dev.chagres.ops;

import dev.chagres.Tensor;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.ops.OpsAttention;
import dev.chagres.bindings.ops.OpsScores;
import dev.chagres.bindings.ops.OpsStrides;
import dev.chagres.internal.Checks;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.MaskType;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QkvLayout;
import java.lang.foreign.MemorySegment;

/**
 * The native struct of an attention call, made once per device and filled anew by each call.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code OpsAttention} in {@code ops.h}.
 */
final class AttentionStruct {
    static final DeviceState.Attachment<AttentionStruct> ATTACHMENT =
            new DeviceState.Attachment<>(AttentionStruct::new);

    final MemorySegment segment;
    /** The strides of each tensor, inside the struct. */
    private final MemorySegment query;

    private final MemorySegment key;
    private final MemorySegment value;
    private final MemorySegment output;
    private final MemorySegment queryGradient;
    private final MemorySegment keyGradient;
    private final MemorySegment valueGradient;
    private final MemorySegment statistics;
    private final MemorySegment scores;
    private final MemorySegment biasShape;
    private final MemorySegment maskShape;
    private final MemorySegment place;
    /** Whether the struct leaves scores unmodified, so that calls without modifications need not write it. */
    private boolean plain = true;

    private AttentionStruct(DeviceState device) {
        segment = OpsAttention.allocate(device.arena());
        query = OpsAttention.query(segment);
        key = OpsAttention.key(segment);
        value = OpsAttention.value(segment);
        output = OpsAttention.output(segment);
        queryGradient = OpsAttention.d_query(segment);
        keyGradient = OpsAttention.d_key(segment);
        valueGradient = OpsAttention.d_value(segment);
        statistics = OpsAttention.statistics(segment);
        scores = OpsAttention.scores(segment);
        biasShape = OpsScores.bias_shape(scores);
        maskShape = OpsScores.mask_shape(scores);
        place = OpsAttention.place(segment);
    }

    /** Fills in what forward and backward have in common. */
    void describe(AttentionProblem problem, AttentionTensors tensors, AttentionScores changes, AttentionPlace among) {
        Tensor state = tensors.rngState();
        OpsAttention.q(segment, tensors.query().address());
        OpsAttention.k(segment, tensors.key().address());
        OpsAttention.v(segment, tensors.value().address());
        OpsAttention.o(segment, tensors.output().address());
        OpsAttention.log_sum_exp(segment, tensors.statistics().address());
        OpsAttention.cu_seqlens_q(segment, tensors.queryLengths().address());
        OpsAttention.cu_seqlens_kv(segment, tensors.keyLengths().address());
        OpsAttention.cu_seqlens_q_padded(segment, Checks.addressOrNull(tensors.queryStarts()));
        OpsAttention.cu_seqlens_kv_padded(segment, Checks.addressOrNull(tensors.keyStarts()));
        OpsAttention.rng_state(segment, Checks.addressOrNull(state));
        describeProblem(problem);
        among.writeTo(place, segment);
        describeSizes(tensors);
        describeStrides(problem, tensors);
        if (!changes.isPlain() || !plain) {
            changes.writeTo(scores, biasShape, maskShape);
            plain = changes.isPlain();
        }
    }

    private void describeProblem(AttentionProblem problem) {
        MaskType mask = problem.mask();
        int packed = problem.layout().format() == QkvFormat.THD ? 1 : 0;
        OpsAttention.window_left(segment, problem.windowLeft());
        OpsAttention.window_right(segment, mask.isCausal() ? 0 : problem.windowRight());
        OpsAttention.alignment(segment, mask.isBottomRight() ? Ops.OPS_BOTTOM_RIGHT() : Ops.OPS_TOP_LEFT());
        OpsAttention.scale(segment, problem.scale());
        OpsAttention.dropout(segment, problem.draws() ? problem.dropout() : 0);
        OpsAttention.packed(segment, packed);
        OpsAttention.kv_packed(segment, packed);
    }

    private void describeSizes(AttentionTensors tensors) {
        Tensor query = tensors.query();
        Tensor value = tensors.value();
        int rank = query.rank();
        OpsAttention.sequences(segment, tensors.sequences());
        OpsAttention.length(segment, tensors.queryLength());
        OpsAttention.kv_length(segment, tensors.keyLength());
        OpsAttention.heads(segment, query.size(rank - 2));
        OpsAttention.kv_heads(segment, value.size(rank - 2));
        OpsAttention.head_dim(segment, query.size(rank - 1));
        OpsAttention.value_dim(segment, value.size(rank - 1));
        OpsAttention.dtype(segment, query.dtype().code());
    }

    private void describeStrides(AttentionProblem problem, AttentionTensors tensors) {
        QkvFormat format = problem.layout().format();
        QkvLayout.Packing packing = problem.layout().packing();
        write(query, tensors.query(), packing.queryParts(), format);
        write(key, tensors.key(), packing.keyParts(), format);
        write(value, tensors.value(), packing.keyParts(), format);
        write(output, tensors.output(), 1, format);
        long heads = tensors.query().size(tensors.query().rank() - 2);
        long length = tensors.queryLength();
        if (format == QkvFormat.THD) {
            write(statistics, 0, heads, 1);
        } else {
            write(statistics, heads * length, 1, length);
        }
    }

    /** Fills in what only backward has. */
    void describeGradients(AttentionProblem problem, AttentionTensors tensors, Tensor delta) {
        QkvFormat format = problem.layout().format();
        QkvLayout.Packing packing = problem.layout().packing();
        OpsAttention.d_o(segment, tensors.outputGradient().address());
        OpsAttention.dq(segment, tensors.queryGradient().address());
        OpsAttention.dk(segment, tensors.keyGradient().address());
        OpsAttention.dv(segment, tensors.valueGradient().address());
        OpsAttention.delta(segment, delta.address());
        write(queryGradient, tensors.queryGradient(), packing.queryParts(), format);
        write(keyGradient, tensors.keyGradient(), packing.keyParts(), format);
        write(valueGradient, tensors.valueGradient(), packing.keyParts(), format);
    }

    /** Writes the strides of a tensor of heads in a buffer that holds {@code parts} such tensors side by side. */
    private static void write(MemorySegment strides, Tensor tensor, int parts, QkvFormat format) {
        int rank = tensor.rank();
        long head = tensor.size(rank - 1);
        long token = parts * tensor.size(rank - 2) * head;
        switch (format) {
            case THD -> write(strides, 0, token, head);
            case BSHD -> write(strides, tensor.size(1) * token, token, head);
            case SBHD -> write(strides, token, tensor.size(1) * token, head);
        }
    }

    private static void write(MemorySegment strides, long sequence, long token, long head) {
        OpsStrides.sequence(strides, sequence);
        OpsStrides.token(strides, token);
        OpsStrides.head(strides, head);
    }
}

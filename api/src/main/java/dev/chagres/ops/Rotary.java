package dev.chagres.ops;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.ops.OpsRotary;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.te.FusedRope.Pairing;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * Rotary position embedding of query and key in one buffer. The angle of a token's position rotates each pair {@code (a, b)} of a head's
 * first r elements to {@code (a cos - b sin, b cos + a sin)}. It works in place, or while the buffer is split into three tensors, or joined
 * again. TE rotates packed tokens only into a second tensor, and splits only padded tokens.
 *
 * <p>Tokens behind the last sequence, and positions without angles, are not rotated. FLOAT32, BFLOAT16 or FLOAT16.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_rotary_packed}, {@code ops_rotary_split}, {@code ops_rotary_join} in {@code ops.h}; Su et al., RoFormer
 * (2021).
 */
public final class Rotary {
    /** The direction of a rotation. */
    public enum Direction {
        /** By the angle. */
        FORWARD(1),
        /** By the negative angle, as gradients need it. */
        BACKWARD(-1);

        private final int sign;

        Direction(int sign) {
            this.sign = sign;
        }
    }

    private Rotary() {}

    /**
     * Enqueues the rotation of query and key, in place.
     *
     * @param qkv [T, (h + 2 g) d]; rewritten
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or qkv shares memory with another tensor
     */
    public static void rotaryPacked(
            Tensor qkv,
            QkvHeads heads,
            RotaryTable table,
            TokenPositions positions,
            Direction direction,
            Stream stream) {
        Checks.given("direction", direction);
        check(qkv, heads, Checks.given("table", table), positions, stream);
        written("qkv", qkv, table, positions);
        if (qkv.count() > 0) {
            MemorySegment struct = struct(qkv, heads, table, positions, direction, stream);
            Status.ops(Ops.ops_rotary_packed(qkv.address(), struct, stream.handle()), "ops_rotary_packed");
        }
    }

    /**
     * Enqueues a split of the buffer into three tensors, with query and key rotated.
     *
     * @param qkv [T, (h + 2 g) d]
     * @param table the angles; null: nothing is rotated
     * @param q receives the query: T h d elements
     * @param k receives the key: T g d elements; so {@code v}
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public static void rotarySplit(
            Tensor qkv,
            QkvHeads heads,
            @Nullable RotaryTable table,
            TokenPositions positions,
            Tensor q,
            Tensor k,
            Tensor v,
            Stream stream) {
        checkApart(qkv, heads, table, positions, q, k, v, stream);
        written("q", q, table, positions);
        written("k", k, table, positions);
        written("v", v, table, positions);
        if (qkv.count() > 0) {
            MemorySegment struct = struct(qkv, heads, table, positions, Direction.FORWARD, stream);
            Status.ops(
                    Ops.ops_rotary_split(qkv.address(), q.address(), k.address(), v.address(), struct, stream.handle()),
                    "ops_rotary_split");
        }
    }

    /**
     * Enqueues the gradient of {@link #rotarySplit}: joins the three, with query and key rotated back.
     *
     * @param dq gradient of the query: T h d elements
     * @param dk gradient of the key: T g d elements; so {@code dv}
     * @param dqkv receives the gradient of the buffer, [T, (h + 2 g) d]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public static void rotaryJoin(
            Tensor dq,
            Tensor dk,
            Tensor dv,
            QkvHeads heads,
            @Nullable RotaryTable table,
            TokenPositions positions,
            Tensor dqkv,
            Stream stream) {
        checkApart(dqkv, heads, table, positions, dq, dk, dv, stream);
        written("qkv", dqkv, table, positions);
        if (dqkv.count() > 0) {
            MemorySegment struct = struct(dqkv, heads, table, positions, Direction.BACKWARD, stream);
            Status.ops(
                    Ops.ops_rotary_join(
                            dq.address(), dk.address(), dv.address(), dqkv.address(), struct, stream.handle()),
                    "ops_rotary_join");
        }
    }

    private static MemorySegment struct(
            Tensor qkv,
            QkvHeads heads,
            @Nullable RotaryTable table,
            TokenPositions positions,
            Direction direction,
            Stream stream) {
        return Inside.state(stream)
                .get(RotaryStruct.ATTACHMENT)
                .describe(
                        heads,
                        table,
                        positions,
                        direction.sign,
                        qkv.size(0),
                        qkv.dtype().code());
    }

    private static void check(
            Tensor qkv, QkvHeads heads, @Nullable RotaryTable table, TokenPositions positions, Stream stream) {
        Checks.matrix(stream, "qkv", qkv);
        if (qkv.size(1) != Checks.given("heads", heads).columns()) {
            throw new IllegalArgumentException("qkv: expected [T, " + heads.columns() + "], of each token "
                    + heads.heads() + " heads of the query and " + heads.keyHeads() + " of key and value, of "
                    + heads.headDim() + ", got " + Checks.describe(qkv));
        }
        if (table != null) {
            table.check(heads, stream);
        }
        Checks.given("positions", positions).check("qkv", qkv, stream);
    }

    private static void checkApart(
            Tensor qkv,
            QkvHeads heads,
            @Nullable RotaryTable table,
            TokenPositions positions,
            Tensor q,
            Tensor k,
            Tensor v,
            Stream stream) {
        check(qkv, heads, table, positions, stream);
        part("q", q, qkv, (long) heads.heads() * heads.headDim(), stream);
        part("k", k, qkv, (long) heads.keyHeads() * heads.headDim(), stream);
        part("v", v, qkv, (long) heads.keyHeads() * heads.headDim(), stream);
        Checks.apart("q", q, "k", k, "v", v);
        Checks.apart("k", k, "v", v);
    }

    private static void part(String argument, Tensor part, Tensor qkv, long columns, Stream stream) {
        Checks.typed(stream, argument, part, qkv.dtype());
        if (part.count() != qkv.size(0) * columns) {
            throw new IllegalArgumentException(argument + ": expected " + qkv.size(0) * columns + " elements, "
                    + columns + " of each token, got " + Checks.describe(part));
        }
        Checks.apart(argument, part, "qkv", qkv);
    }

    private static void written(String argument, Tensor tensor, @Nullable RotaryTable table, TokenPositions positions) {
        Checks.writable(argument, tensor);
        if (table != null) {
            Checks.apart(argument, tensor, "angles", table.angles());
        }
        positions.checkApart(argument, tensor);
    }

    /**
     * The native struct of a rotation, made once per device and filled anew by each call.
     *
     * <p>Source: {@code OpsRotary} in {@code ops.h}.
     */
    private static final class RotaryStruct {
        static final DeviceState.Attachment<RotaryStruct> ATTACHMENT = new DeviceState.Attachment<>(RotaryStruct::new);

        private final MemorySegment segment;

        private RotaryStruct(DeviceState device) {
            segment = OpsRotary.allocate(device.arena());
        }

        /** Fills in the struct of {@code tokens} tokens; without a table nothing is rotated. */
        MemorySegment describe(
                QkvHeads heads,
                @Nullable RotaryTable table,
                TokenPositions positions,
                int sign,
                long tokens,
                int dtype) {
            OpsRotary.cu_seqlens(segment, Checks.addressOrNull(positions.cuSeqlens()));
            OpsRotary.start_positions(segment, Checks.addressOrNull(positions.startPositions()));
            OpsRotary.tokens(segment, tokens);
            OpsRotary.extent(segment, positions.extent());
            OpsRotary.heads(segment, heads.heads());
            OpsRotary.kv_heads(segment, heads.keyHeads());
            OpsRotary.head_dim(segment, heads.headDim());
            OpsRotary.layout(segment, positions.code());
            OpsRotary.direction(segment, sign);
            OpsRotary.dtype(segment, dtype);
            if (table == null) {
                describe(0, 0, 0, Ops.OPS_HALVES());
            } else {
                int pairing = table.pairing() == Pairing.INTERLEAVED ? Ops.OPS_INTERLEAVED() : Ops.OPS_HALVES();
                describe(table.angles().address(), table.angles().size(0), table.rotatedDim(), pairing);
            }
            return segment;
        }

        private void describe(long angles, long positions, long rotatedDim, int pairing) {
            OpsRotary.angles(segment, angles);
            OpsRotary.positions(segment, positions);
            OpsRotary.rotated_dim(segment, rotatedDim);
            OpsRotary.pairing(segment, pairing);
        }
    }
}

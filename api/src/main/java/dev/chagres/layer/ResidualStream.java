package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import dev.chagres.ops.Elementwise;
import org.jspecify.annotations.Nullable;

/**
 * {@code x = x + path(dropout(branch(norm(x))))} for each half of a layer. The sum forms where the branch wrote its output,
 * and is what the next norm keeps; backward keeps one gradient, in place.
 *
 * <p>Threading: the device's thread.
 */
final class ResidualStream {
    /** What backward needs of one half. */
    private static final class Half extends Saved {
        private final ResidualDropout.Drawn drawn = new ResidualDropout.Drawn();
    }

    private final PreNorm[] halves;
    private final ResidualDropout dropout;
    private final SavedPool<Half> saved;

    ResidualStream(Layer owner, ResidualDropout dropout, PreNorm... halves) {
        this.halves = halves;
        this.dropout = dropout;
        saved = new SavedPool<>(owner, Half::new);
    }

    /** {@code y} may be {@code x} while nothing is saved. */
    void run(Tensor x, Tensor y, Pass pass) {
        boolean saving = pass.isSaving();
        boolean drops = dropout.drops(pass);
        Tensor stream = x;
        Tensor update = null;
        // Each half overwrites it, where backward does not read the norm's output.
        Tensor passing = null;
        for (int i = 0; i < halves.length; i++) {
            boolean last = i == halves.length - 1;
            NormLayer norm = halves[i].norm();
            boolean keeps = halves[i].keepsNormed(x.size(0), pass);
            Tensor normed = keeps
                    ? pass.kept().like(x)
                    : passing == null ? pass.temporary().like(x) : passing;
            passing = keeps ? passing : normed;
            if (update == null) {
                norm.run(stream, normed, pass);
            } else {
                Tensor sum = saving ? update : y;
                boolean learns = stream.requiresGradient() || update.requiresGradient();
                norm.runOfSum(update, stream, sum, normed, pass);
                Inside.requireGradient(sum, learns);
                stream = sum;
                update = null;
            }
            Inside.requireGradient(normed, stream.requiresGradient() || norm.requiresGradient());
            Tensor added = place(saving, last, stream, y, pass);
            halves[i].runBranch(normed, added, pass);
            Half half = saved.push(pass);
            if (half != null) {
                half.drawn.clear();
            }
            if (drops || last) {
                boolean learns = stream.requiresGradient() || added.requiresGradient();
                Tensor sum = saving ? added : y;
                add(added, stream, sum, drops, half, pass);
                Inside.requireGradient(sum, learns);
                stream = sum;
            } else {
                update = added;
            }
        }
    }

    /** Returns where a branch writes: where its sum will stand, unless the stream stands there. */
    private static Tensor place(boolean saving, boolean last, Tensor stream, Tensor y, Pass pass) {
        if (saving) {
            return last ? y : pass.kept().like(y);
        }
        return stream.address() == y.address() ? pass.temporary().like(y) : y;
    }

    private void add(Tensor added, Tensor stream, Tensor sum, boolean drops, @Nullable Half half, Pass pass) {
        if (drops) {
            dropout.add(added, stream, sum, half == null ? null : half.drawn, pass);
        } else {
            Elementwise.add(added, stream, sum, pass.stream());
        }
    }

    /** {@code dx} may be {@code dy}. */
    void gradient(Tensor dy, Tensor dx, Pass pass) {
        Tensor dstream = dy;
        Scope temporary = pass.temporary();
        Tensor dnormed = temporary.like(dy);
        Tensor dropped = null;
        for (int i = halves.length - 1; i >= 0; i--) {
            Half half = saved.pop(pass);
            Tensor dadded = dstream;
            if (half.drawn.isPresent()) {
                dropped = dropped == null ? temporary.like(dy) : dropped;
                dropout.gradient(dstream, dropped, half.drawn, pass);
                dadded = dropped;
            }
            halves[i].branch().backward(dadded, dnormed, pass);
            if (halves[i].norm().learns(pass)) {
                halves[i].norm().gradientOfSum(dnormed, dstream, dx, pass);
                dstream = dx;
            } else {
                halves[i].norm().discard(pass);
            }
        }
    }
}

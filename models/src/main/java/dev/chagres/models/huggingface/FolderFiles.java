package dev.chagres.models.huggingface;

import dev.chagres.Shape;
import dev.chagres.io.ModelFiles;
import dev.chagres.io.TensorSource;
import java.util.List;

/**
 * What a folder of a model has, but for its weights. An architecture adds the files, and which parameters make which tensors.
 *
 * <p>Threading: immutable.
 */
abstract class FolderFiles implements ModelFiles {
    /** Returns for each parameter the tensors that it makes. */
    abstract List<Target> targets();

    /** Returns the rows of tensors whose parameters have padding; 0, as here, for those without padding. */
    long paddedRows() {
        return 0;
    }

    @Override
    public final List<Named> tensors(String parameter) {
        return targets().stream()
                .filter(target -> target.parameter().equals(parameter))
                .flatMap(target ->
                        target.parts().stream().map(part -> new Named(part.tensor(), Shape.of(part.sizes()))))
                .toList();
    }

    @Override
    public List<TensorSource> constants() {
        return List.of();
    }
}

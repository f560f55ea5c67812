"""GLM 4.5 and 4.6: as 4.7, with newlines between the tags, which are layout in both."""

from attrs import evolve

from scaleout.parsers.format import reshaped
from scaleout.parsers.formats.glm47 import FORMAT as GLM47
from scaleout.parsers.formats.glm47 import tagged_shape

FORMAT = evolve(GLM47, name="glm45", signs=(), tool_parsers=(), calls=reshaped(GLM47, tagged_shape("\n")))

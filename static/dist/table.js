import{a,b}from"./chunk.js";import"./chunk-5.js";export{b as table,a as tableOf};
